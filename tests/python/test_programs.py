"""Whole programs on the double of libcuda: threads that need each other, forks and exits, roles of whole processes.

Each test is a program of its own that has the double in place of the driver, so that the real hook holds real threads;
test_life.py has the simple cases. They need the built package and a C compiler.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import mosaic_torch

PACKAGE = Path(mosaic_torch.__file__).parent
TESTS = Path(__file__).parents[1]
# Starting torch takes seconds on a busy machine; nothing here waits that long for anything else.
LIMIT_S = 90


@pytest.fixture(scope="session")
def double(tmp_path_factory):
    """The folder with the double's libcuda.so.1."""
    if not shutil.which(os.environ.get("CC", "cc")):
        pytest.skip("NO C COMPILER: the double of libcuda cannot be built")
    folder = tmp_path_factory.mktemp("fakecuda")
    subprocess.run(["sh", TESTS / "fakecuda/build.sh", folder], check=True, stdout=subprocess.DEVNULL)
    return folder


class Machine:
    """Runs programs on one machine with the double as its GPUs: they share a ledger."""

    def __init__(self, double, folder):
        self.folder = folder
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("MOSAIC_", "FAKECUDA_", "LD_PRELOAD"))}
        self.environment = {
            **inherited,
            "LD_LIBRARY_PATH": str(double),
            "PYTHONPATH": os.pathsep.join([str(PACKAGE.parent), str(TESTS / "python")]),
            "PYTHONFAULTHANDLER": "1",
            "FAKECUDA_CLOCK": "real",
            "MOSAIC_LEDGER_DIR": str(folder / "ledger"),
            "CUDA_VISIBLE_DEVICES": "",
        }
        self._started = []

    def start(self, *command, **environment):
        process = subprocess.Popen(
            [os.fsdecode(c) for c in command],
            env={**self.environment, **environment},
            cwd=self.folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._started.append(process)
        return process

    def source(self, program):
        path = self.folder / f"program{len(list(self.folder.glob('program*.py')))}.py"
        path.write_text(program)
        return path

    def start_python(self, program, **environment):
        return self.start(sys.executable, self.source(program), **environment)

    def python(self, program, **environment):
        """Its output; it has to end, and well."""
        return finish(self.start_python(program, **environment))

    def kill(self):
        for process in self._started:
            if process.poll() is None:
                process.kill()
            process.communicate()


def finish(process, seconds=LIMIT_S):
    try:
        out, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGABRT)  # faulthandler shows where its threads are
        out, _ = process.communicate()
        pytest.fail(f"it does not end:\n{out}")
    assert process.returncode == 0, f"exit code {process.returncode}:\n{out}"
    return out


@pytest.fixture
def machine(double, tmp_path):
    machine = Machine(double, tmp_path)
    yield machine
    machine.kill()


BEGIN = """
import atexit, ctypes, os, signal, sys, threading, time
import double
import mosaic_torch
from mosaic_torch.errors import MosaicError
from life_support import BE, HP, Gpu, Held, Jobs, until

def begin(**settings):
    global gpu, jobs, hp, be, request
    gpu = Gpu()
    jobs = Jobs(gpu, **settings)
    hp, be = jobs.job("server", HP), jobs.job("worker", BE)
    request = jobs.lib.request_open(hp, 0)
"""

LOCKED = pytest.mark.parametrize("locked", [True, False], ids=["with Python's lock", "without"])


# Exit


@LOCKED
def test_exit_with_a_daemon_thread_in_the_gate(machine, locked):
    """Fault: Python ends the thread inside our frames when it takes the lock again: abort, or a hang at exit."""
    out = machine.python(
        f"""{BEGIN}
begin()
Held(jobs, be, locked={locked}, count=None)
print("at", time.monotonic(), flush=True)
"""
    )
    assert "at " in out
    began = float(out.split("at ")[1].split()[0])
    assert time.monotonic() - began < 15, "the exit took long"


def test_many_exits_with_torch_at_work_in_a_held_thread(machine):
    """Fault: let out at exit, it runs torch's operators while the interpreter ends, which up to Python 3.13 aborts.

    It does in plain torch too, nearly every time; but a thread that stands in the gate can stay there.
    """
    out = machine.python(
        f"""{BEGIN}
import torch
exits = 30
for _ in range(exits):
    child = os.fork()
    if child == 0:
        break
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code == 0, f"exit code {{code}}"
else:
    print(exits, "exits")
    sys.exit()

signal.alarm(20)
begin()
torch.set_num_threads(1)
stream, x = jobs.stream(be), torch.ones(64, 64)
def work():
    gpu.enter()
    with torch.inference_mode():
        while True:
            gpu.launch(stream)
            for _ in range(20):
                torch.tanh(x @ x)
threading.Thread(target=work, daemon=True).start()
until(lambda: jobs.launches(be), "a launch")
assert not jobs.of(be)["be"]["admitted"]
"""
    )
    assert out.splitlines()[-1] == "30 exits"


@LOCKED
def test_exit_handlers_may_wait_for_a_thread_in_the_gate(machine, locked):
    """Fault: a daemon thread is stopped for good at the first exit handler, and a later one, which joins it, hangs."""
    out = machine.python(
        f"""
import atexit
def last():
    jobs.lib.request_close(request)
    held.finish()
    assert gpu.launch(jobs.stream(be), locked={locked}) == 0, "the main thread"
    print("joined")
atexit.register(last)
{BEGIN}
begin()
held = Held(jobs, be, locked={locked}, count=3)
"""
    )
    assert out.split("\n") == ["worked", "joined", ""]


def test_exit_does_not_hold_the_main_thread(machine):
    """Fault: an exit handler's own best-effort launch waits, though the gate is open, or for ever."""
    machine.python(
        f"""
import atexit
def last():
    assert gpu.launch(stream) == 0
    assert jobs.of(be)["be"]["escaped"] == 1, jobs.of(be)["be"]
atexit.register(last)
{BEGIN}
begin()
stream = jobs.stream(be)
"""
    )


@LOCKED
def test_exit_waits_for_a_thread_that_is_no_daemon(machine, locked):
    """Fault: the gate opens before such threads have ended, and their work runs over HP's of other processes."""
    out = machine.python(
        f"""{BEGIN}
begin(max_wait_ms=200)
held = Held(jobs, be, locked={locked}, count=3, daemon=False)
def at_exit():
    stats = jobs.of(be)["be"]
    assert held.answers == [0, 0, 0], held.answers
    assert (stats["escaped"], stats["admitted_wait_bound"]) == (0, 3), stats
    print("as it should be")
atexit.register(at_exit)
"""
    )
    assert out.split("\n") == ["worked", "as it should be", ""]


def test_exit_when_the_interpreter_fails(machine):
    """Fault: a program that ends by an error, with a thread in the gate, hangs or loses its exit code."""
    process = machine.start_python(
        f"""{BEGIN}
begin()
Held(jobs, be, locked=True)
sys.exit(3)
"""
    )
    out, _ = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 3, out


# Signals


@LOCKED
def test_interrupt_of_a_main_thread_in_the_gate(machine, locked):
    """Fault: Ctrl-C does nothing until the gate opens, or is lost when it does not come in the middle of a nap."""
    out = machine.python(
        f"""{BEGIN}
begin()
jobs.lib.request_close(request)
stream, presses = jobs.stream(be), 0
def press(before, done):
    global presses
    until(lambda: jobs.launches(be) > before, "a launch of the main thread")
    while not done.wait(0.1):  # as a user does: again, until something happens
        presses += 1
        os.kill(os.getpid(), signal.SIGINT)
for _ in range(10):
    request, done = jobs.lib.request_open(hp, 0), threading.Event()
    presser = threading.Thread(target=press, args=(jobs.launches(be), done))
    try:
        presser.start()
        gpu.launch(stream, locked={locked})
        done.wait(30)
        raise AssertionError("not interrupted")
    except KeyboardInterrupt:
        done.set()
    presser.join()
    jobs.lib.request_close(request)
    double.check(double.cuda.cuCtxSynchronize())
print(presses, jobs.of(be)["be"]["admitted_wait_bound"])
"""
    )
    presses, launches = map(int, out.split())
    assert launches == 10
    assert presses <= 13, "one is enough, but for the rare one that comes between two naps"


# Threads


def test_held_thread_gives_up_pythons_lock(machine):
    """Fault: a launch that is made with the lock held, and held in the gate, stops every Python thread."""
    machine.python(
        f"""{BEGIN}
begin()
held = [Held(jobs, be, locked=True) for _ in range(4)]
began, steps = time.monotonic(), []
other = threading.Thread(target=lambda: [steps.append(time.sleep(0)) for _ in range(10_000)])
other.start()
other.join(10)
assert len(steps) == 10_000, len(steps)
assert all(h.holds(0) for h in held)
jobs.lib.request_close(request)
[h.finish() for h in held]
"""
    )


def test_thread_without_a_context(machine):
    """Fault: a thread that never made a context current crashes in the hook, is held, or is given one that stays."""
    machine.python(
        f"""{BEGIN}
begin()
free, with_role = double.stream(), jobs.stream(be)
def current():
    context = ctypes.c_void_p()
    double.check(double.cuda.cuCtxGetCurrent(ctypes.byref(context)))
    return context.value
def work():
    assert current() is None
    # The default stream of no device: the driver's own refusal, at once, although a request is open.
    assert gpu.launch(None) == 201
    # Requests are opened and closed by whoever gets the news of them.
    mine = jobs.lib.request_open(hp, 0)
    jobs.lib.request_close(mine)
    assert current() is None
    results.append(jobs.lib.job_register("another", BE, 0, 1.1, 0))
    assert current() is None
results = []
thread = threading.Thread(target=work)
thread.start()
thread.join(20)
assert len(results) == 1
# A launch on a stream with a role: held as from any other thread, and then answered by the driver.
held = Held(jobs, be, locked=False, context=False)
jobs.lib.request_close(request)
held.join(20)
assert not held.is_alive()
expected = []
def ask():
    expected.append(gpu.launch(free))
asker = threading.Thread(target=ask)
asker.start()
asker.join()
assert held.answers == expected, (held.answers, expected)
"""
    )


@LOCKED
def test_hp_that_needs_a_lock_of_a_held_thread(machine, locked):
    """Fault: HP waits for a lock, its owner waits for HP: nothing moves until the bound of the wait."""
    machine.python(
        f"""{BEGIN}
begin(stall_ms=20)
lock, launches = threading.Lock(), 5
stream, answers = jobs.stream(be), []
def work():
    gpu.enter()
    with lock:
        inside.set()
        answers.extend(gpu.launch(stream, locked={locked}) for _ in range(launches))
inside = threading.Event()
thread = threading.Thread(target=work)
thread.start()
assert inside.wait(20)
began = time.monotonic()
assert lock.acquire(timeout=20), "HP waits for best effort"
took = time.monotonic() - began
thread.join(20)
assert answers == [0] * launches
stats = jobs.of(be)["be"]
assert stats["admitted_hp_stalled"] == launches, stats
assert stats["admitted"] + stats["admitted_wait_bound"] + stats["escaped"] == 0, stats
print("took", took)
"""
    )


def test_hp_at_work_on_the_gpu_is_not_stalled(machine):
    """Fault: a long kernel of an engine's own stream is taken for silence, and best effort runs beside it."""
    machine.python(
        f"""{BEGIN}
begin(stall_ms=20)
jobs.lib.request_close(request)
stream = double.stream()
jobs.lib._c.mosaic_request_begin.restype = ctypes.c_int64
jobs.lib._c.mosaic_request_begin.argtypes = [ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p]
mine = jobs.lib._c.mosaic_request_begin(hp, 0, stream)
assert mine > 0, jobs.lib._c.mosaic_last_error()
assert gpu.launch(stream, "k_400ms") == 0
held = Held(jobs, be, locked=False)
assert held.holds(0.2), jobs.of(be)["be"]
jobs.lib.request_close(mine)
assert held.holds(0), jobs.of(be)["be"]
held.finish()
assert jobs.of(be)["be"]["admitted"] == 1, jobs.of(be)["be"]
double.check(double.cuda.cuStreamQuery(stream))
"""
    )


def test_two_gpus(machine):
    """Fault: an HP request of one GPU holds the best effort of another."""
    machine.python(
        f"""{BEGIN}
begin()
first = gpu
held = Held(jobs, be, locked=False)
gpu = Gpu(1)
jobs = Jobs(gpu)
other = jobs.job("other", BE)
assert gpu.launch(jobs.stream(other)) == 0
stats = jobs.of(other)
assert (stats["device"], stats["be"]["admitted"], stats["be"]["held"]) == (1, 1, 0), stats
assert held.holds()
jobs.lib.request_close(request)
held.finish()
""",
        FAKECUDA_DEVICES="2",
    )


def test_exception_in_forward_ends_the_request(machine):
    """Fault: the request stays open, and best effort is held for ever."""
    machine.python(
        f"""{BEGIN}
import torch
from mosaic_torch._cuda import Cuda
from mosaic_torch._runtime import Runtime

begin()
jobs.lib.request_close(request)

class Library:
    # The package's own library, but for the two ops: torch has no GPU here.
    def __getattr__(self, name):
        return getattr(jobs.lib, name)
    def enter(self, job, request, device):
        return request or jobs.lib.request_open(job, 0)
    def leave(self, token, ok):
        jobs.lib.request_close(token)

class NoStreams(Cuda):
    raw_stream = staticmethod(lambda device: 0)
    passive = staticmethod(lambda: False)
    problem = init = lambda self: None
    current_device = lambda self: 0
    device_count = lambda self: 1

class Model(torch.nn.Module):
    def forward(self, fail):
        global held
        held = Held(jobs, be, locked=True)
        if fail:
            raise KeyError("in forward")
        return "done"

runtime = Runtime(Library, NoStreams())
model = runtime.wrap(Model(), HP, 1.1, "model", 0)
for fail in (True, False, True):
    try:
        assert model(fail) == "done" and not fail
    except KeyError:
        assert fail
    held.finish()
"""
    )


# Fork, spawn, workers


def test_forked_child(machine):
    """Fault: the child hangs on what the parent's threads held, ends the parent's claims, or waits for its threads."""
    machine.python(
        f"""{BEGIN}
begin()
held = Held(jobs, be, locked=True)
stream = jobs.stream(be)
child = os.fork()
if child == 0:
    signal.alarm(20)
    # CUDA is not usable here: the driver's own answer, and ours, at once.
    assert gpu.launch(stream) != 0
    try:
        jobs.job("of the child", BE)
        os._exit(11)
    except MosaicError as e:
        if "spawn" not in str(e):
            os._exit(12)
    try:
        jobs.stats()
        os._exit(13)
    except MosaicError as e:
        if "spawn" not in str(e):
            os._exit(14)
    os._exit(7)
_, status = os.waitpid(child, 0)
assert os.waitstatus_to_exitcode(status) == 7, os.waitstatus_to_exitcode(status)
assert held.holds(), "the child's end let best effort go"
jobs.lib.request_close(request)
held.finish()
"""
    )


def test_forked_child_ends_by_itself(machine):
    """Fault: the exit of a forked child waits for threads that only its parent has."""
    out = machine.python(
        f"""{BEGIN}
begin()
held = Held(jobs, be, locked=True)
child = os.fork()
if child == 0:
    sys.exit(7)
began = time.monotonic()
_, status = os.waitpid(child, 0)
took = time.monotonic() - began
jobs.lib.request_close(request)
held.finish()
print(os.waitstatus_to_exitcode(status), took)
"""
    )
    code, took = out.splitlines()[-1].split()
    assert code == "7"
    assert float(took) < 3


def test_workers_of_a_data_loader(machine):
    """Fault: workers that are forked while a thread is held hang, or let it go when they end."""
    machine.python(
        f"""{BEGIN}
import torch
class Squares(torch.utils.data.Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, i):
        return torch.tensor(i * i)
begin()
held = Held(jobs, be, locked=True)
for _ in range(2):
    batches = list(torch.utils.data.DataLoader(Squares(), batch_size=16, num_workers=2, timeout=60))
    assert torch.cat(batches).tolist() == [i * i for i in range(64)]
assert held.holds()
jobs.lib.request_close(request)
held.finish()
"""
    )


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_child_with_jobs_of_its_own(machine, method):
    """Fault: a child of another start method has no hook, or another ledger than its parent."""
    machine.python(
        f"""{BEGIN}
import multiprocessing
def child(said, go):
    global gpu, jobs
    gpu = Gpu()
    jobs = Jobs(gpu)
    held = Held(jobs, jobs.job("child", BE), locked=False)
    said.set()
    assert go.wait(60)
    held.finish()
if __name__ == "__main__":
    begin()
    context = multiprocessing.get_context("{method}")
    said, go = context.Event(), context.Event()
    process = context.Process(target=child, args=(said, go))
    process.start()
    assert said.wait(60), "the parent's request does not hold the child"
    jobs.lib.request_close(request)
    go.set()
    process.join(60)
    assert process.exitcode == 0
"""
    )


# Imports


def test_entry_point_that_was_asked_for_earlier(machine):
    """Fault: callers that have the address from cuGetProcAddress, as the CUDA runtime does, go past the hook."""
    machine.python(
        f"""
import ctypes
import double
double.check(double.cuda.cuInit(0))
address, found = ctypes.c_void_p(), ctypes.c_int()
ask = double.cuda.cuGetProcAddress_v2
ask.argtypes = [ctypes.c_char_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint64, ctypes.c_void_p]
double.check(ask(b"cuLaunchKernel", ctypes.byref(address), 13000, 0, ctypes.byref(found)))
arguments = [ctypes.c_void_p, *[ctypes.c_uint] * 7, *[ctypes.c_void_p] * 3]
launch = ctypes.CFUNCTYPE(ctypes.c_int, *arguments)(address.value)
{BEGIN}
begin()
stream, answers = jobs.stream(be), []
thread = threading.Thread(target=lambda: answers.append(gpu.launch(stream, through=launch)))
thread.start()
until(lambda: jobs.launches(be) == 1, "a launch that is seen")
thread.join(0.1)
assert answers == []
jobs.lib.request_close(request)
thread.join(20)
assert len(answers) == 1
"""
    )


def test_import_without_a_driver(machine, tmp_path):
    """Fault: an import that fails on a machine without a GPU, or a first use that does not say what is missing."""
    out = machine.python(
        """
import mosaic_torch
try:
    mosaic_torch.hp(print)
except mosaic_torch.DeviceError as e:
    print(e)
""",
        LD_LIBRARY_PATH=str(tmp_path),
    )
    assert "GPU" in out


# Whole processes

# Holds best effort until a line comes in.
SERVER = f"""{BEGIN}
begin()
print("open", flush=True)
sys.stdin.readline()
jobs.lib.request_close(request)
print("closed", flush=True)
"""

HOLD_BY_ENVIRONMENT = {"MOSAIC_STALL_MS": "600000", "MOSAIC_MAX_WAIT_MS": "600000"}


def expect(process, line):
    found = process.stdout.readline().strip()
    if found != line:
        process.kill()
        pytest.fail(f"expected {line!r}, found {found!r} and then:\n{process.stdout.read()}")


def says_nothing(process, seconds):
    """Nothing more comes out of it for so long."""
    import select

    return not select.select([process.stdout], [], [], seconds)[0]


def check_that_it_is_held(server, process):
    """The program says "ready", launches, and says "launched"; and must not get there while the request is open."""
    expect(process, "ready")
    assert says_nothing(process, 0.5), "it was not held"
    server.stdin.write("close\n")
    server.stdin.flush()
    expect(server, "closed")
    expect(process, "launched")
    finish(process)
    finish(server)


def command():
    found = shutil.which("mosaic", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    return found or pytest.fail("the command `mosaic` is not installed: run `make install`")


def test_unmodified_script_under_mosaic_run(machine):
    """Fault: a program that is put under a role runs without it, default stream included."""
    server = machine.start_python(SERVER)
    expect(server, "open")
    script = machine.source(
        """
import sys
import torch
from life_support import Gpu
assert "the_users_own" in sys.argv, sys.argv
gpu = Gpu()
print("ready", flush=True)
assert gpu.launch() == 0
print("launched", flush=True)
"""
    )
    run = [command(), "run", "--role", "be", "--name", "script", "--", sys.executable, script, "the_users_own"]
    check_that_it_is_held(server, machine.start(*run, **HOLD_BY_ENVIRONMENT))


def test_script_without_torch_under_mosaic_run(machine):
    """Fault: an environment with a role breaks programs that have nothing to do with it."""
    script = machine.source("import sys; print('fine'); sys.exit(5)")
    process = machine.start(command(), "run", "--role", "be", "--", sys.executable, script)
    out, _ = process.communicate(timeout=LIMIT_S)
    assert (out, process.returncode) == ("fine\n", 5)


C_PROGRAM = r"""
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef void* handle;
int cuInit(unsigned), cuDevicePrimaryCtxRetain(handle*, int), cuCtxSetCurrent(handle), cuCtxSynchronize(void);
int cuModuleLoadData(handle*, const char*), cuModuleGetFunction(handle*, handle, const char*);
int cuLaunchKernel(handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, handle, void**,
                   void**);

static handle context, function;

static void check(int result, const char* call) {
  if (result == 0) return;
  printf("%s: %d\n", call, result);
  exit(1);
}
#define CHECK(call) check(call, #call)

static void say(const char* what) {
  printf("%s\n", what);
  fflush(stdout);
}

static void say_time(const char* what) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  printf("%s %lld\n", what, t.tv_sec * 1000000000LL + t.tv_nsec);
  fflush(stdout);
}

static void* launch(void* unused) {
  CHECK(cuCtxSetCurrent(context));
  CHECK(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
  return unused;
}

int main(int argc, char** argv) {
  const char* what = argc > 1 ? argv[1] : "launch";
  handle module;
  CHECK(cuInit(0));
  CHECK(cuDevicePrimaryCtxRetain(&context, 0));
  CHECK(cuCtxSetCurrent(context));
  CHECK(cuModuleLoadData(&module, "double"));
  CHECK(cuModuleGetFunction(&function, module, argc > 2 ? argv[2] : "k_5us"));
  if (!strcmp(what, "leave")) { /* main returns while a thread is held */
    pthread_t thread;
    say("ready");
    pthread_create(&thread, NULL, launch, NULL);
    char line[16];
    return fgets(line, sizeof line, stdin) == NULL;
  }
  if (!strcmp(what, "launch")) say("ready");
  launch(NULL);
  if (!strcmp(what, "launch")) say("launched");
  else say_time("launched");
  CHECK(cuCtxSynchronize());
  if (strcmp(what, "launch")) say_time("finished");
  return 0;
}
"""


@pytest.fixture
def c_program(machine, double):
    source, program = machine.folder / "program.c", machine.folder / "program"
    source.write_text(C_PROGRAM)
    link = [double / "libcuda.so.1", f"-Wl,-rpath,{double}", "-pthread"]
    subprocess.run([os.environ.get("CC", "cc"), "-std=gnu11", "-Wall", source, *link, "-o", program], check=True)
    return program


ENGINE = {"LD_PRELOAD": str(PACKAGE / "libmosaic_engine.so")}


@pytest.mark.parametrize("by_command", [True, False], ids=["mosaic run", "LD_PRELOAD"])
def test_unmodified_c_program(machine, c_program, by_command):
    """Fault: a program outside Python that is put under a role runs without it."""
    server = machine.start_python(SERVER)
    expect(server, "open")
    if by_command:
        process = machine.start(command(), "run", "--role", "be", "--", c_program, **HOLD_BY_ENVIRONMENT)
    else:
        process = machine.start(c_program, MOSAIC_ROLE="be", **ENGINE, **HOLD_BY_ENVIRONMENT)
    check_that_it_is_held(server, process)


def test_program_whose_name_is_no_text(machine, c_program):
    """Fault: the role's library ends a program that it cannot name."""
    odd = os.path.join(os.fsencode(machine.folder), b"pro\xffgram")
    os.link(c_program, odd)
    process = machine.start(odd, MOSAIC_ROLE="be", **ENGINE, **HOLD_BY_ENVIRONMENT)
    expect(process, "ready")
    expect(process, "launched")
    assert finish(process) == ""


def test_c_program_ends_with_a_thread_in_the_gate(machine, c_program):
    """Fault: exit() of a program outside Python waits for the gate, or crashes in it."""
    server = machine.start_python(SERVER)
    expect(server, "open")
    process = machine.start(c_program, "leave", MOSAIC_ROLE="be", **ENGINE, **HOLD_BY_ENVIRONMENT)
    expect(process, "ready")
    assert says_nothing(process, 0.3)
    began = time.monotonic()
    process.stdin.write("leave\n")
    assert finish(process) == ""
    assert time.monotonic() - began < 5
    finish(server)


def times(out):
    return {word: int(at) for word, at in (line.split() for line in out.splitlines())}


def test_unmodified_c_programs_in_both_roles(machine, c_program):
    """Fault: an HP process's long kernel, which no request marks, is taken for silence: best effort runs beside it."""
    settings = {"MOSAIC_STALL_MS": "20", "MOSAIC_MAX_WAIT_MS": "600000", "MOSAIC_CALIBRATION_REQUESTS": "0", **ENGINE}
    server = machine.start(c_program, "times", "k_600ms", MOSAIC_ROLE="hp", **settings)
    at = times(server.stdout.readline())
    worker = machine.start(c_program, "times", "k_5us", MOSAIC_ROLE="be", **settings)
    best_effort = times(finish(worker))
    at |= times(finish(server))
    assert at["launched"] < best_effort["launched"], "it came too early to say anything"
    assert at["finished"] - at["launched"] > 500_000_000
    assert best_effort["launched"] > at["launched"] + 600_000_000 - 5_000_000, "best effort ran beside HP"


def test_engine_library_steps_aside_in_python(machine):
    """Fault: preloaded into Python as well, where the package does its work, so that two hooks are in one process."""
    out = machine.python(
        """
import ctypes
from life_support import Gpu
gpu = Gpu()
assert gpu.launch() == 0
engine = ctypes.CDLL("libmosaic_engine.so")
engine.mosaic_stats_json.restype = ctypes.c_char_p
print(engine.mosaic_stats_json().decode())
""",
        MOSAIC_ROLE="be",
        LD_LIBRARY_PATH=os.pathsep.join([machine.environment["LD_LIBRARY_PATH"], str(PACKAGE)]),
        **ENGINE,
    )
    assert '"hook":null' in out
