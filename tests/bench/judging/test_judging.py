"""Answers are judged by what they come to, and programs by what they do, never by how they look."""

import contextlib
import os
import signal
import socket
import subprocess
import time

import pytest

from paceline.bench.judging.answers import is_same_result
from paceline.bench.judging.judge import Judge, check_judging, working_judge
from paceline.bench.judging.programs import Limits, passes_tests, program_in, runs_through
from paceline.errors import InputError
from paceline.prompt_sets import Reference
from paceline.prompts import Prompt

SUM = Prompt("sums", "1", "What is 6 times 12?", reference=Reference("72"))
CODE = Prompt(
    "code",
    "1",
    "Write it.",
    reference=Reference(tests="def check(f):\n    assert f(2) == 4\ncheck(double)\n", stub="def double(x):\n"),
)
QUICK = Limits(seconds=5.0)


@pytest.mark.parametrize(
    ("text", "right", "same"),
    [
        ("so it is \\boxed{1,072}.", "1072", True),
        ("It is 0.5", "\\frac{1}{2}", True),
        ("The answer is 71.", "72", False),
        ("I do not know.", "72", False),
    ],
)
def test_results_are_compared_as_mathematics(text, right, same):
    assert is_same_result(text, right) is same


def test_a_result_that_takes_too_long_is_wrong():
    started = time.perf_counter()
    assert not is_same_result("72", "72", seconds=0.01)
    assert time.perf_counter() - started < 5.0


@pytest.mark.parametrize(
    ("answer", "right"),
    [
        ("Here:\n```python\ndef double(x):\n    return 2 * x\n```\nDone.", True),
        ("```python\ndef double(x):\n    return 3 * x\n```", False),
        ("    return 2 * x\n", True),
        ("```\ndef double(x):\n    return 2 * x", True),
        ("I cannot.", False),
        ("```python\ndef double(x):\n    return 2 * x\nraise SystemExit(0)\n```", False),
        ("```bash\npip install it\n```\nThen:\n```python3\ndef double(x):\n    return 2 * x\n```", True),
        (
            "<think>```python\ndef double(x):\n    return 0\n```</think>```py\ndef double(x):\n    return x + x",
            True,
        ),
    ],
)
def test_a_program_is_right_when_it_passes_the_tests(answer, right):
    assert passes_tests(answer, CODE.reference, QUICK) is right


def test_what_a_stub_defines_is_there_whether_or_not_the_answer_repeats_its_function():
    stub = 'import math\n\n\ndef half(x):\n    return x / 2\n\n\ndef double(x):\n    """Twice."""\n'
    reference = Reference(tests="assert double(2) == 4 and half(2) == 1 and math.pi\n", stub=stub)
    for answer in ("    return 2 * x", "```python\ndef double(x):\n    return 4 * half(x)\n```"):
        assert passes_tests(answer, reference, QUICK)


def test_tests_that_call_a_name_nobody_told_mean_the_last_function():
    reference = Reference(tests="assert set(shared_items([1, 2], [2])) == {2}\n")
    own = "```python\ndef helper(a):\n    return set(a)\n\ndef common(a, b):\n    return helper(a) & helper(b)\n```"
    assert passes_tests(own, reference, QUICK)
    assert not passes_tests(own.replace("&", "|"), reference, QUICK)
    assert program_in("```\ndef shared_items(a, b):\n    return a\n```", reference).count("shared_items") == 1


def test_a_judge_that_cannot_work_is_refused(monkeypatch):
    assert working_judge(("answers", "programs"))(SUM, "72") is True
    monkeypatch.setattr("paceline.bench.judging.judge.passes_tests", lambda text, reference: False)
    with pytest.raises(InputError, match="--judge programs does not work here"):
        working_judge(("programs",))


@pytest.mark.parametrize(
    "program",
    [
        "while True: pass",
        "import time; time.sleep(60)",
        "x = bytearray(2 << 30)",
        "open('big', 'wb').write(b'0' * (2 << 20))",
        "import os; os._exit(0)",
        "import sys; sys.exit()",
        "1 / 0",
        "def (",
    ],
)
def test_a_program_beyond_its_limits_does_not_come_through(program):
    started = time.perf_counter()
    assert not runs_through(program, Limits(seconds=2.0))
    assert time.perf_counter() - started < 10.0


@pytest.mark.parametrize(
    "program",
    [
        "import os, time\nif os.fork() == 0:\n    time.sleep(60)",
        "import os\nos.fork()",
        "import threading, time\nthreading.Thread(target=time.sleep, args=(60,)).start()",
        "import atexit, time\natexit.register(time.sleep, 60)",
        "import pickle\nclass A: pass\nassert isinstance(pickle.loads(pickle.dumps(A())), A)",
        "import typing\nclass B: pass\nclass A:\n    x: 'B'\nassert typing.get_type_hints(A) == {'x': B}",
        "import multiprocessing\ndef f(x): return x + 1\n"
        "assert multiprocessing.get_context('fork').Pool(2).map(f, [1, 2]) == [2, 3]",
    ],
)
def test_a_right_program_has_come_through_whatever_it_leaves_running(program):
    started = time.perf_counter()
    assert runs_through(program, Limits(seconds=20.0))
    assert time.perf_counter() - started < 10.0


def test_a_program_has_a_folder_of_its_own_and_none_of_our_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("SECRET", "1")
    program = (
        "import os\nassert 'SECRET' not in os.environ\nassert not os.listdir('.')\nopen('mine', 'w').write('x')\n"
        f"assert os.getcwd() != {str(tmp_path)!r}"
    )
    assert runs_through(program, QUICK) and runs_through(program, QUICK)


def running(mark):
    listed = subprocess.run(["ps", "axww", "-o", "args"], capture_output=True, text=True, check=True).stdout
    return [line for line in listed.splitlines() if line.startswith("sh -c") and mark in line]


@pytest.mark.parametrize("session", [False, True])
@pytest.mark.parametrize("then", ["", "while True: pass"])
def test_what_a_program_started_ends_with_it(session, then):
    mark = f"paceline-left-behind-{session}-{bool(then)}"
    command = ["sh", "-c", f"sleep 300; : {mark}"]
    with subprocess.Popen(command, start_new_session=True) as seen:
        time.sleep(0.2)
        assert running(mark), "such a process is seen while it runs"
        os.killpg(seen.pid, signal.SIGKILL)
    program = f"import subprocess\nsubprocess.Popen({command!r}, start_new_session={session})\n{then}"
    assert runs_through(program, Limits(seconds=3.0)) is not bool(then)
    assert not running(mark)


def test_what_a_program_started_ends_when_judging_is_broken_off(monkeypatch):
    mark = "paceline-left-behind-broken-off"
    started = subprocess.Popen.communicate

    def interrupted(process, text=None, timeout=None):
        monkeypatch.undo()
        with contextlib.suppress(subprocess.TimeoutExpired):
            started(process, text, 2.0)
        assert running(mark)
        raise KeyboardInterrupt

    monkeypatch.setattr(subprocess.Popen, "communicate", interrupted)
    program = (
        f"import subprocess\nsubprocess.Popen(['sh', '-c', 'sleep 300; : {mark}'], start_new_session=True)\n"
        "while True: pass"
    )
    with pytest.raises(KeyboardInterrupt):
        runs_through(program, Limits(seconds=60.0))
    assert not running(mark)


def test_a_program_reaches_no_server_of_this_machine_where_the_system_can_keep_it_from_that():
    if subprocess.run(["unshare", "-rn", "true"], capture_output=True, check=False).returncode:
        pytest.skip("this system gives nobody a network of their own")
    with socket.create_server(("127.0.0.1", 0)) as server:
        program = f"import socket; socket.create_connection(('127.0.0.1', {server.getsockname()[1]}), 2)"
        assert not runs_through(program, QUICK)


def test_only_what_was_asked_for_is_judged():
    wrong_kind = Judge(("answers",))
    assert wrong_kind(CODE, "```python\nraise SystemExit\n```") is None
    assert wrong_kind(Prompt("x", "1", "y"), "72") is None
    assert wrong_kind(SUM, "It is 72.") is True
    assert Judge(("programs",))(SUM, "72") is None


def test_judging_what_has_no_reference_is_refused_before_the_work():
    with pytest.raises(InputError, match="no prompt has a reference"):
        check_judging(("programs",), [SUM])
    check_judging(("answers",), [SUM, CODE])
