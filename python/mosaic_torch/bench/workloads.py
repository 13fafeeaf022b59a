"""The jobs, in fixed shapes: random weights of the real shapes, from a seed; ``tiny`` shapes for dry runs on a CPU.

A job is a plain callable with fixed inputs; one call is one request, or one BE iteration. ``expected_ms`` is its
isolated time on an H200, for planning only.
"""

import dataclasses
from collections.abc import Callable


@dataclasses.dataclass
class Job:
    """A built workload."""

    name: str
    model: object
    fn: Callable
    inputs: tuple
    shape: str

    def call(self):
        return self.fn(*self.inputs)


@dataclasses.dataclass(frozen=True)
class Workload:
    """A workload that can be built."""

    name: str
    expected_ms: float
    build: Callable  # (device, tiny) -> Job without a name
    needs: tuple = ()


def _inference(model, device, dtype, channels_last=False):
    import torch

    model = model.to(device=device, dtype=dtype).eval().requires_grad_(False)
    if channels_last:
        model = model.to(memory_format=torch.channels_last)

    @torch.no_grad()
    def fn(*args):
        return model(*args)

    return model, fn


def _image(name, batch, dtype_name):
    def build(device, tiny):
        import torch
        from torchvision import models

        dtype = getattr(torch, dtype_name) if device.type == "cuda" else torch.float32
        n, side = (2, 64) if tiny else (batch, 224)
        with torch.device(device):
            net = getattr(models, name)(weights=None)
            image = torch.randn(n, 3, side, side, dtype=dtype).to(memory_format=torch.channels_last)
        model, fn = _inference(net, device, dtype, channels_last=True)
        return Job("", model, fn, (image,), f"batch {n}, {side}x{side}, {dtype}, channels_last")

    return build


def _bert(batch, length):
    def build(device, tiny):
        import torch
        from transformers import BertConfig, BertModel

        dtype = torch.float16 if device.type == "cuda" else torch.float32
        size = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
        n, span = batch, length
        if tiny:
            size = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
            n, span = 2, 16
        with torch.device(device):
            net = BertModel(BertConfig(**size))
            ids = torch.randint(0, 30000, (n, span))
            mask = torch.ones_like(ids)
        model, _ = _inference(net, device, dtype)

        @torch.no_grad()
        def fn(ids, mask):
            return model(input_ids=ids, attention_mask=mask).last_hidden_state

        return Job("", model, fn, (ids, mask), f"batch {n}, length {span}, {dtype}")

    return build


def _dlrm(device, tiny):
    import torch

    from .dlrm import Dlrm

    tables, rows, width, batch, pooling = (4, 100, 8, 16, 2) if tiny else (26, 200_000, 128, 8192, 20)
    bottom, top = ((16,), (16,)) if tiny else ((512, 256), (1024, 1024, 512, 256))
    with torch.device(device):
        net = Dlrm(tables, rows, width, 13, bottom, top)
        dense = torch.randn(batch, 13)
        indices = torch.randint(0, rows, (tables, batch * pooling))
        offsets = torch.arange(0, batch * pooling, pooling)
    model, fn = _inference(net, device, torch.float32)
    return Job("", model, fn, (dense, indices, offsets), f"{tables} tables x {rows} x {width}, batch {batch}")


def _llama(steps):
    """``steps`` None: a request is one decode step on a filled cache; else a prompt and ``steps`` generated tokens."""

    def build(device, tiny):
        import torch
        from torch.nn.attention import SDPBackend, sdpa_kernel
        from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

        dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        size = {
            "vocab_size": 128256,
            "hidden_size": 4096,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "intermediate_size": 14336,
            "rope_theta": 500000.0,
        }
        batch, prompt = 8, 512
        if tiny:
            size |= {"vocab_size": 128, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
            size |= {"num_key_value_heads": 2, "intermediate_size": 64}
            batch, prompt = 2, 8
        before = torch.get_default_dtype()
        torch.set_default_dtype(dtype)
        try:
            with torch.device(device):
                net = LlamaForCausalLM(LlamaConfig(**size))
                ids = torch.randint(0, size["vocab_size"], (batch, prompt))
        finally:
            torch.set_default_dtype(before)
        model, _ = _inference(net, device, dtype)
        config = model.config
        shape = f"batch {batch}, prompt {prompt}, {dtype}"

        if steps is not None:
            tokens = 2 if tiny else steps

            @torch.no_grad()
            def generate(ids):
                return model.generate(
                    ids,
                    attention_mask=torch.ones_like(ids),
                    max_new_tokens=tokens,
                    min_new_tokens=tokens,
                    do_sample=False,
                    pad_token_id=0,
                )

            return Job("", model, generate, (ids,), f"{shape} + {tokens} tokens")

        cache = DynamicCache(config=config)
        with torch.no_grad():
            model(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1)

        # The kernel that torch prefers here, cuDNN's, gives other bits at every call.
        kernel = SDPBackend.FLASH_ATTENTION if device.type == "cuda" else SDPBackend.MATH

        @torch.no_grad()
        def decode(last):
            # Back to the prompt: every request sees the same cache.
            if (added := cache.get_seq_length() - prompt) > 0:
                cache.crop(-added)
            with sdpa_kernel(kernel):
                return model(input_ids=last, past_key_values=cache, use_cache=True, logits_to_keep=1).logits

        return Job("", model, decode, (ids[:, -1:].contiguous(),), f"{shape}, one decode step")

    return build


def _training(device, tiny):
    """One training step of ResNet50, without the optimiser's update: every step sees the same weights."""
    import torch
    from torch.nn import functional
    from torchvision import models

    n, side = (2, 64) if tiny else (32, 224)
    with torch.device(device):
        model = models.resnet50(weights=None).to(memory_format=torch.channels_last).train()
        image = torch.randn(n, 3, side, side).to(memory_format=torch.channels_last)
        label = torch.randint(0, 1000, (n,))
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.momentum = 0.0

    def fn(image, label):
        model.zero_grad(set_to_none=True)
        loss = functional.cross_entropy(model(image), label)
        loss.backward()
        return [loss.detach(), *(p.grad.detach().clone() for p in model.parameters())]

    return Job("", model, fn, (image, label), f"batch {n}, {side}x{side}, fp32 (TF32), forward and backward")


def _toy(width, depth):
    def build(device, tiny):
        import torch

        with torch.device(device):
            net = torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(depth)))
            x = torch.randn(width, width)
        model, fn = _inference(net, device, torch.float32)
        return Job("", model, fn, (x,), f"{depth} linear layers of {width}")

    return build


WORKLOADS = {
    w.name: w
    for w in (
        Workload("resnet50", 7.8, _image("resnet50", 64, "float32"), ("torchvision",)),
        Workload("resnet50-fp16", 4.0, _image("resnet50", 32, "float16"), ("torchvision",)),
        Workload("mobilenetv3", 5.5, _image("mobilenet_v3_large", 128, "float32"), ("torchvision",)),
        Workload("bert-large", 17.9, _bert(32, 384), ("transformers",)),
        Workload("bert-large-8x128", 9.0, _bert(8, 128), ("transformers",)),
        Workload("dlrm", 1.9, _dlrm),
        Workload("llama-decode", 28.0, _llama(None), ("transformers",)),
        Workload("llama-generate", 550.0, _llama(16), ("transformers",)),
        Workload("resnet50-train", 25.0, _training, ("torchvision",)),
        Workload("toy", 0.2, _toy(64, 4)),
        # One short kernel an iteration: shows within a millisecond when BE runs again.
        Workload("blip", 0.1, _toy(256, 1)),
    )
}


def find(name):
    """The workload called ``name``."""
    try:
        return WORKLOADS[name]
    except KeyError:
        raise ValueError(f"unknown workload {name!r}: expected one of {', '.join(WORKLOADS)}") from None


def build(name, device, tiny=False, seed=0):
    """Builds ``name`` on ``device`` (a torch.device). The seed is the process's: build one job at a time."""
    import torch

    workload = find(name)
    torch.manual_seed(seed)
    job = workload.build(device, tiny)
    job.name = name
    return job
