"""The life of a process with the real library, on the double of libcuda: exit, Ctrl-C and fork while BE is held.

Each test is a script in a process of its own. They need the built package and a C compiler, and skip loudly without.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import mosaic_torch._lib as lib

HERE = Path(__file__).parent
PACKAGE_ROOT = lib.PATH.parent.parent

pytestmark = [
    pytest.mark.skipif(not lib.PATH.exists(), reason="NOT BUILT: libmosaic.so is missing (pip install .)"),
    pytest.mark.skipif(shutil.which("cc") is None, reason="NO C COMPILER: the double of libcuda needs one"),
]

# BE is held: an HP request is open, and HP is not at rest long enough to be called stalled.
HELD = """
    PPOLL = "271 "
    import os, signal, sys, threading, time
    import mosaic_torch
    from mosaic_torch._lib import SharedLibrary
    mosaic_torch.configure(max_wait_ms=MAX_WAIT_MS, stall_ms=60_000)
    library = SharedLibrary()
    library.init()
    import double
    double.attach()
    hp = library.job_register("hp", 1, 0, 1.1, 0)
    be = library.job_register("be", 2, 0, 1.0, 0)
    stream, kernel = double.stream(), double.kernel("spin_10us")
    double.stream_role(library, stream, be)
    request = library.request_open(hp, 0)

    def in_gate(thread_id):
        # The gate naps; nothing else in the threads that are asked about does.
        with open(f"/proc/self/task/{thread_id}/syscall") as file:
            return file.read().startswith(PPOLL)

    def until(condition):
        ends = time.monotonic() + 20
        while not condition():
            assert time.monotonic() < ends, "it never came"
            time.sleep(0.001)
"""


@pytest.fixture(scope="module")
def double(tmp_path_factory):
    """The folder of the double."""
    folder = tmp_path_factory.mktemp("fakecuda")
    subprocess.run(["sh", HERE.parent / "fakecuda" / "build.sh", folder], check=True, stdout=subprocess.DEVNULL)
    return folder


@pytest.fixture
def environment(double, tmp_path):
    kept = {k: v for k, v in os.environ.items() if not k.startswith("MOSAIC_")}
    return {
        **kept,
        "LD_LIBRARY_PATH": str(double),
        "PYTHONPATH": os.pathsep.join([str(PACKAGE_ROOT), str(HERE)]),
        "MOSAIC_LEDGER_DIR": str(tmp_path / "ledger"),
        "PYTHONFAULTHANDLER": "1",
    }


def script(text, max_wait_ms=20_000):
    return textwrap.dedent(HELD).replace("MAX_WAIT_MS", str(max_wait_ms)) + textwrap.dedent(text)


def run(text, environment, **arguments):
    done = subprocess.run(
        [sys.executable, "-c", text],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        **arguments,
    )
    assert done.returncode == 0, f"exit status {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


def test_a_held_launch_goes_once_the_request_ends(environment):
    """The whole path in one process, and that a wait does not stop other Python threads (either way of calling)."""
    out = run(
        script("""
        for through in (double.cuda, double.locked):
            seen = []
            def be_thread():
                double.attach()
                double.launch(kernel, stream, through)
                seen.append(time.monotonic())
            thread = threading.Thread(target=be_thread)
            thread.start()
            until(lambda: in_gate(thread.native_id))
            time.sleep(0.05)  # this thread runs on although the launch waits
            assert not seen
            library.request_close(request)
            thread.join(20)
            assert seen
            request = library.request_open(hp, 0)
        print("through")
        """),
        environment,
    )
    assert out.stdout == "through\n"


@pytest.mark.parametrize("through", ["cuda", "locked"])
@pytest.mark.parametrize("daemon", [True, False])
def test_exit_with_be_in_the_gate(environment, daemon, through):
    """A thread that takes Python's lock again while the interpreter ends is ended through our frames: a crash."""
    out = run(
        script(f"""
        def be_thread():
            double.attach()
            while True:
                double.launch(kernel, stream, double.{through})
                if not {daemon}:
                    break
        thread = threading.Thread(target=be_thread, daemon={daemon})
        thread.start()
        until(lambda: in_gate(thread.native_id))
        if not {daemon}:
            # A thread that is no daemon is joined before exit handlers run, so something must end the request.
            library.request_close(request)
        print("exits")
        """),
        environment,
    )
    assert out.stdout == "exits\n"
    assert "Fatal" not in out.stderr


@pytest.mark.parametrize("through", ["cuda", "locked"])
def test_ctrl_c_in_the_gate(environment, through):
    """Python handles signals between instructions only, so the launch must come out of the gate for it."""
    out = run(
        script(
            f"""
        def press():
            until(lambda: in_gate(os.getpid()))
            pressed.append(time.monotonic())
            os.kill(os.getpid(), signal.SIGINT)
        pressed = []
        threading.Thread(target=press).start()
        try:
            double.launch(kernel, stream, double.{through})
            while True:
                pass
        except KeyboardInterrupt:
            print("interrupted" if time.monotonic() - pressed[0] < 2 else "late")
        library.request_close(request)
        double.launch(kernel, stream)
        """,
            max_wait_ms=1000,
        ),
        environment,
    )
    assert out.stdout == "interrupted\n"


def test_fork_before_use(environment):
    """A child of a process that only imported the package starts afresh."""
    run(
        """
import os, mosaic_torch
pid = os.fork()
if pid == 0:
    from mosaic_torch.api import runtime
    runtime.lib.init()
    job = runtime.lib.job_register("child", 1, 0, 1.1, 0)
    runtime.lib.request_close(runtime.lib.request_open(job, 0))
    os._exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
""",
        environment,
    )


def test_fork_with_be_in_the_gate(environment):
    """DataLoader workers are forked at any time: the child neither hangs nor ends the parent's request."""
    run(
        script("""
        import fakes
        from mosaic_torch import api
        def be_thread():
            double.attach()
            double.launch(kernel, stream)
        thread = threading.Thread(target=be_thread)
        thread.start()
        until(lambda: in_gate(thread.native_id))
        api.runtime.cuda = fakes.FakeCuda(fakes.FakeGpu())
        wrapped = mosaic_torch.hp(lambda: 1, name="wrapped")
        opened = mosaic_torch.request(wrapped)
        pid = os.fork()
        if pid == 0:
            said = []
            for use in (opened.open, opened.__enter__, wrapped):
                try:
                    use()
                except mosaic_torch.MosaicError as e:
                    said.append("use the spawn start method" in str(e))
            os._exit(7 if said == [True] * 3 else 8)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
        time.sleep(0.05)
        assert thread.is_alive(), "the child's end let the parent's BE through"
        library.request_close(request)
        thread.join(20)
        assert not thread.is_alive()
        """),
        environment,
    )


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_data_loader_workers(environment, method, tmp_path):
    """Workers never touch the GPU, but inherit or import the package."""
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent(f"""
        import mosaic_torch, torch
        from torch.utils.data import DataLoader

        class Squares:
            def __len__(self):
                return 8
            def __getitem__(self, i):
                import mosaic_torch
                return torch.tensor(i * i)

        if __name__ == "__main__":
            import double
            from mosaic_torch.api import runtime
            runtime.lib.init()
            double.attach()
            job = runtime.lib.job_register("hp", 1, 0, 1.1, 0)
            request = runtime.lib.request_open(job, 0)
            loader = DataLoader(Squares(), batch_size=2, num_workers=2, multiprocessing_context="{method}")
            assert sum(batch.sum().item() for batch in loader) == 140
            runtime.lib.request_close(request)
        """)
    )
    done = subprocess.run(
        [sys.executable, program], env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("order", ["import torch, mosaic_torch", "import mosaic_torch, torch"])
@pytest.mark.parametrize("cuda_first", [True, False])
def test_both_import_orders_and_cuda_before_or_after(environment, order, cuda_first):
    """The hook catches launches whatever was there first."""
    run(
        f"""
import double
if {cuda_first}:
    double.attach()
    double.launch(double.kernel("k_1us"))
{order}
double.attach()
from mosaic_torch.api import runtime
lib = runtime.lib
job = lib.job_register("be", 2, 0, 1.0, 0)
stream = double.stream()
double.stream_role(lib, stream, job)
double.launch(double.kernel("k_1us"), stream)
(stats,) = lib.stats()["jobs"]
assert stats["kernels"] == 1, stats
""",
        environment,
    )


class TestMosaicRun:
    """An unmodified program under a role, as `mosaic run` sets it up."""

    PROGRAM = """
import double, torch, os
double.attach()
kernel = double.kernel("k_1us")
for _ in range(3):
    double.launch(kernel)
import mosaic_torch, json
print(json.dumps(mosaic_torch.stats()["jobs"]))
"""

    @pytest.fixture
    def role(self, environment):
        startup = lib.PATH.parent / "_startup"
        return {**environment, "PYTHONPATH": os.pathsep.join([str(startup), environment["PYTHONPATH"]])}

    @pytest.mark.parametrize("name", ["be", "hp"])
    def test_the_default_stream_has_the_role(self, role, name):
        out = run(self.PROGRAM, {**role, "MOSAIC_ROLE": name, "MOSAIC_NAME": "training", "MOSAIC_SLO": "1.2"})
        (job,) = json.loads(out.stdout)
        assert (job["role"], job["name"], job["kernels"]) == (name, "training", 3)

    def test_without_a_role_nothing_has_one(self, role):
        assert json.loads(run(self.PROGRAM, role).stdout) == []

    def test_it_dies_of_signals_as_before(self, role):
        """No handler of ours may keep a program from ending."""
        process = subprocess.Popen(
            [sys.executable, "-c", "import torch, time; print('up', flush=True); time.sleep(60)"],
            env={**role, "MOSAIC_ROLE": "be"},
            stdout=subprocess.PIPE,
            text=True,
        )
        with process:
            assert process.stdout.readline() == "up\n"
            process.send_signal(signal.SIGTERM)
            assert process.wait(20) == -signal.SIGTERM
