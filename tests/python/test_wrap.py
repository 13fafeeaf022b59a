"""Wrapping and unwrapping: what is changed, what is refused, and how it is said."""

import copy
import gc
import inspect
import io
import pickle
import re

import pytest
import torch

import mosaic_torch
from fakes import Model, OnGpu
from mosaic_torch._lib import BE, HP
from mosaic_torch._runtime import fingerprint, wrapper_of
from mosaic_torch.errors import DeviceError, MosaicError, UsageError


def hp(runtime, model, slo=1.1, name=None, device=None):
    return runtime.wrap(model, HP, slo, name, device)


def test_a_module_stays_itself(runtime):
    """isinstance, attributes, signatures and state_dict must go on working, or generate() and trainers break."""
    model = torch.nn.Linear(2, 2, device="meta")
    model.parameters = lambda: iter([OnGpu()])
    keys = list(model.state_dict())
    assert hp(runtime, model) is model
    assert isinstance(model, torch.nn.Linear)
    assert list(model.state_dict()) == keys
    assert list(inspect.signature(model.forward).parameters) == ["input"]


def test_a_callable_comes_back_wrapped(runtime, library):
    def double(x):
        """Doubles."""
        return x * 2

    wrapped = hp(runtime, double)
    assert wrapped(4) == 8
    assert (wrapped.__name__, wrapped.__doc__) == ("double", "Doubles.")
    assert library.names() == ["enter", "leave"]
    assert runtime.unwrap(wrapped) is double


@pytest.mark.parametrize(
    ("make", "error", "says"),
    [
        (lambda r: hp(r, 3), UsageError, "found int, expected an nn.Module or a callable"),
        (lambda r: hp(r, Model(), slo=0.9), UsageError, "found slo=0.9"),
        (lambda r: hp(r, Model(), slo=float("nan")), UsageError, "found slo=nan"),
        (lambda r: hp(r, Model(), slo="1.1"), UsageError, "found slo='1.1'"),
        (lambda r: hp(r, Model(), slo=10**400), UsageError, "found slo=1000"),
        (lambda r: hp(r, hp(r, Model())), UsageError, "already wrapped as <hp job 'Model'"),
        (lambda r: hp(r, hp(r, print)), UsageError, "already wrapped"),
        (lambda r: hp(r, hp(r, Model()).forward), UsageError, "already wrapped"),
        (lambda r: hp(r, Model(0, 1)), DeviceError, "on cuda:0, cuda:1"),
        (lambda r: hp(r, torch.nn.Linear(1, 1)), DeviceError, "not on a GPU: move it there first"),
        (lambda r: hp(r, Model(1), device=0), DeviceError, "device=cuda:0, but the model's parameters are on cuda:1"),
        (lambda r: hp(r, print, device="cuda:9"), DeviceError, "torch sees 2 GPU"),
        (lambda r: hp(r, print, device="cpu"), UsageError, "expected a CUDA device"),
        (lambda r: hp(r, print, device="gpu"), UsageError, "expected a CUDA device"),
        (lambda r: hp(r, print, name="x" * 64), UsageError, "1 to 63 bytes"),
        (lambda r: hp(r, print, name=""), UsageError, "1 to 63 bytes"),
        (lambda r: hp(r, print, name="\ud800"), UsageError, "1 to 63 bytes"),
        (lambda r: r.unwrap(Model()), UsageError, "Model is not wrapped"),
        (lambda r: r.job_of(Model(), HP), UsageError, "call mosaic_torch.hp on it first"),
        (lambda r: r.job_of(hp(r, Model()), BE), UsageError, "where a be job is needed"),
    ],
)
def test_a_wrong_call_says_what_is_wrong(runtime, make, error, says):
    with pytest.raises(error, match=re.escape(says)):
        make(runtime)


def test_a_method_of_a_wrapped_model_is_refused(runtime):
    """Two jobs for one workload would each be calibrated on half of it."""
    model = hp(runtime, Model())
    with pytest.raises(UsageError, match=r"with mosaic_torch.request\(model\)"):
        hp(runtime, model.extra_repr)


@pytest.mark.parametrize("kind", ["coroutine", "generator"])
def test_what_returns_before_its_work_is_refused(runtime, kind):
    """Its request would end before its first kernel."""

    async def coroutine():
        pass

    def generator():
        yield

    with pytest.raises(UsageError, match="returns before its work is done"):
        hp(runtime, {"coroutine": coroutine, "generator": generator}[kind])


def test_a_model_that_spans_gpus_by_design_is_refused(runtime):
    """Held on one rank only, its collectives would block the other ranks' GPUs."""
    with pytest.raises(UsageError, match="DataParallel spans several GPUs"):
        hp(runtime, torch.nn.DataParallel(torch.nn.Linear(1, 1)))


def test_nothing_is_left_of_a_refused_wrap(runtime, library):
    model = Model()
    with pytest.raises(UsageError):
        hp(runtime, model, name="")
    assert wrapper_of(model) is None
    assert library.jobs == {}


def test_unwrap_restores_the_instance(runtime, library):
    plain = Model()
    hp(runtime, plain)
    assert runtime.unwrap(plain) is plain
    assert "forward" not in plain.__dict__
    patched = Model()
    patched.forward = own = lambda x: x + 1
    hp(runtime, patched)
    runtime.unwrap(patched)
    assert patched.forward is own
    assert library.jobs == {}
    hp(runtime, plain)


@pytest.mark.parametrize(
    "duplicate",
    [
        copy.deepcopy,
        lambda m: pickle.loads(pickle.dumps(m)),
        lambda m: torch.load(io.BytesIO(_saved(m)), weights_only=False),
    ],
)
def test_a_copy_is_not_wrapped(runtime, library, duplicate):
    """A copy that shared the job would end requests of the original; a pickle of it could not be read elsewhere."""
    model = hp(runtime, Model())
    twin = duplicate(model)
    library.calls.clear()
    assert twin(3.0) == 3.0
    assert library.names() == []
    assert twin.forward.__self__ is twin
    assert wrapper_of(twin) is None
    assert wrapper_of(model) is not None
    again = hp(runtime, twin)
    again(1.0)
    third = duplicate(again)  # of a copy that is wrapped
    runtime.unwrap(again)
    library.calls.clear()
    for plain in (third, duplicate(again), duplicate(duplicate(again))):
        assert wrapper_of(plain) is None
        assert plain(2.0) == 2.0
        assert plain.forward.__self__ is plain
    assert library.names() == []


class Weighted(Model):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 2)

    def forward(self, x):
        return self.layer(x)


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_a_copy_computes_with_its_own_weights(runtime, duplicate):
    """Fault: the copy's forward is the original's; or wrapping shows in the state_dict."""
    model, x = hp(runtime, Weighted()), torch.ones(1, 2)
    before = model(x)
    twin = duplicate(duplicate(model))
    assert list(twin.state_dict()) == list(model.state_dict()) == ["layer.weight", "layer.bias"]
    assert all(torch.equal(a, b) for a, b in zip(twin.state_dict().values(), model.state_dict().values(), strict=True))
    torch.nn.init.zeros_(twin.layer.weight)
    torch.nn.init.zeros_(twin.layer.bias)
    assert torch.equal(twin(x), torch.zeros(1, 2))
    assert torch.equal(model(x), before)


def _saved(model):
    file = io.BytesIO()
    torch.save(model, file)
    return file.getvalue()


def test_a_model_that_is_gone_gives_its_job_back(runtime, library):
    """The ledger has 64 places: a server that reloads its model would run out of them."""
    model = hp(runtime, Model())
    model(1.0)
    assert len(library.jobs) == 1
    del model
    gc.collect()
    assert library.jobs == {}


def test_default_names_differ(runtime, library):
    """Two jobs of one name could not be told apart in stats() and in messages."""
    a, b = hp(runtime, Model()), hp(runtime, Model())
    assert [runtime.job_of(m, HP).name for m in (a, b)] == ["Model", "Model-2"]


def test_fingerprints_tell_workloads_apart_and_last():
    """A BE process finds HP's profile by it: the same in every process, another for another shape."""
    a, b, wide = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2), torch.nn.Linear(2, 3)
    assert fingerprint(a) == fingerprint(b) != fingerprint(wide)
    assert fingerprint(torch.nn.Linear(2, 2, dtype=torch.float64)) != fingerprint(a)
    assert fingerprint(torch.compile(a, backend="eager")) == fingerprint(a)
    assert fingerprint(torch.nn.Linear(2, 2)) == 10308154643576142296


def test_no_gpu_is_said_at_the_first_use_only(runtime, library):
    runtime.cuda.why = "torch finds no usable GPU"
    for use in (lambda: hp(runtime, Model()), lambda: runtime.only(HP, 1.1), runtime.ready):
        with pytest.raises(DeviceError, match="no usable GPU"):
            use()


def test_a_failed_hook_is_said_at_each_use(runtime, library):
    library.hook_error = mosaic_torch.HookError("unknown first bytes")
    for _ in range(2):
        with pytest.raises(MosaicError, match="unknown first bytes"):
            hp(runtime, Model())
    library.hook_error = None
    hp(runtime, Model())


class TestCompile:
    """torch.compile must compile the model, and step over the package's frames."""

    @pytest.fixture
    def graphs(self):
        torch._dynamo.reset()
        found = []

        def backend(module, inputs):
            found.append([n.name for n in module.graph.nodes])
            return module.forward

        self.backend = backend
        yield found
        torch._dynamo.reset()

    @pytest.mark.parametrize("order", ["compile of hp", "hp of compile", "inside a compiled function"])
    @pytest.mark.parametrize("kind", ["user's", "torch's", "user's with torch's in it"])
    def test_the_model_compiles_once(self, runtime, library, graphs, order, kind):
        """Fault: no graph at all of a model of torch's own code, which the compiler skips; or one graph a call."""
        parts = {"user's": (), "torch's": (torch.nn.Identity(),), "user's with torch's in it": (Model(),)}[kind]
        model = Model() if not parts else _on_gpu(torch.nn.Sequential(*parts, torch.nn.ReLU(), torch.nn.Identity()))
        if order == "hp of compile":
            model.compile  # noqa: B018
            call = hp(runtime, _compiled_on_gpu(torch.compile(model, backend=self.backend)))
        elif order == "compile of hp":
            call = torch.compile(hp(runtime, model), backend=self.backend)
        else:
            hp(runtime, model)

            def outer(x):
                return model(x)

            call = torch.compile(outer, backend=self.backend)
        for _ in range(3):
            assert torch.equal(call(torch.ones(2)), torch.ones(2))
        assert len(graphs) == 1, graphs
        assert library.names() == ["enter", "leave"] * 3

    def test_many_models_of_torchs_compile_once_each(self, runtime, graphs):
        """Fault: they share one frame's code, and the compiler's limit of graphs for one code is reached."""
        sizes = range(1, 2 * torch._dynamo.config.recompile_limit)
        models = [_on_gpu(torch.nn.Sequential(torch.nn.Hardtanh(0, n), torch.nn.ReLU())) for n in sizes]
        calls = [torch.compile(hp(runtime, m), backend=self.backend) for m in models]
        for _ in range(2):
            for n, call in zip(sizes, calls, strict=True):
                assert torch.equal(call(torch.full((2,), 99.0)), torch.full((2,), float(n)))
        assert len(graphs) == len(calls)

    @pytest.mark.parametrize("model", [torch.nn.Sequential(torch.nn.ReLU()), torch.nn.functional.relu])
    def test_torchs_code_runs_eagerly_as_before(self, runtime, graphs, model):
        """Fault: the frame for the compiler is compiled, or seen, where nobody asked for it."""
        own = model.forward if isinstance(model, torch.nn.Module) else model
        job = hp(runtime, _on_gpu(model) if isinstance(model, torch.nn.Module) else model)
        assert torch.equal(job(torch.tensor([-1.0, 1.0])), torch.tensor([0.0, 1.0]))
        assert graphs == []
        assert wrapper_of(job).__wrapped__ == own
        assert runtime.unwrap(job) is model


def _on_gpu(module):
    module.parameters = lambda: iter([OnGpu()])
    return module


def _compiled_on_gpu(module):
    module._orig_mod.parameters = lambda: iter([OnGpu()])
    module.parameters = module._orig_mod.parameters
    return module
