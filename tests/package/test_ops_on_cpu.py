"""The ops in the real torch, on a machine without a GPU."""

import threading

import pytest

torch = pytest.importorskip("torch")


@pytest.fixture(scope="module")
def ops(installed):
    torch.ops.load_library(installed / "libmosaic.so")
    return torch.ops.mosaic


def test_schemas(ops):
    """Fault: a changed schema, which breaks the Python package of another build."""
    assert str(ops.enter.default._schema) == "mosaic::enter(int job, int request, int device) -> int"
    assert str(ops.leave.default._schema) == "mosaic::leave(int token, bool ok) -> ()"


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is there")
@pytest.mark.parametrize("device", [0, 7])
def test_enter_without_a_gpu_is_one_clear_error(ops, capfd, device):
    """Fault: a crash, or torch's back trace on stderr instead of an error that says what to do."""
    with pytest.raises(RuntimeError, match="CUDA driver") as error:
        ops.enter(1, 0, device)
    assert "mosaic doctor" in str(error.value)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("device", [-1, 2**31, -(2**63), 2**63 - 1])
def test_impossible_device(ops, device):
    """Fault: a device index cut to 32 bits that then names another device."""
    with pytest.raises(RuntimeError, match="is no device index"):
        ops.enter(1, 0, device)


@pytest.mark.parametrize("token", [0, -1, -(2**63), 12345])
def test_wrong_token(ops, token):
    """Fault: a token that was never given and is followed like a pointer."""
    with pytest.raises(RuntimeError, match="token"):
        ops.leave(token, True)


def test_errors_in_threads(ops):
    """Fault: an exception that ends a thread other than the main one, or a thread's end that crashes."""
    errors = []

    def leave():
        try:
            ops.leave(1 << 41, False)
        except RuntimeError as error:
            errors.append(str(error))

    threads = [threading.Thread(target=leave) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(errors) == 8
