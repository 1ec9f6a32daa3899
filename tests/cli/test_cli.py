"""The command line: errors become one sentence and an exit code, and nothing else reaches the user."""

import io
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from paceline.__main__ import run as run_command
from paceline.adaptation.learner import Update
from paceline.cli import COMMANDS, bench, chat, demo, generate, main, parse
from paceline.cli.answer_summary import summary
from paceline.cli.chat import Chat
from paceline.cli.generate import read_prompt
from paceline.cli.options import ModelOptions
from paceline.errors import InputError, PromptTooLongError
from paceline.types import GenerationSettings, Grammar, Piece, Statistics

STATISTICS = Statistics(
    prompt_tokens=3,
    tokens=9,
    rounds=4,
    drafted=12,
    accepted=4,
    stage_ms={"draft": 8.0, "verify": 40.0},
    decode_s=0.5,
)


class EchoModel:
    """Answers with the words it was asked, or raises what it was told to after the first of them."""

    def __init__(self, error: BaseException | None = None):
        self.error = error
        self.asked: list[object] = []

    adapter = None

    def stream(self, prompt, settings):
        self.asked.append((prompt, settings))
        words = (prompt if isinstance(prompt, str) else prompt[-1]["content"]).split()
        for number, word in enumerate(words):
            yield Piece(f"{word} ", (number,))
            if self.error is not None:
                raise self.error
        yield Piece("", (), "stop", STATISTICS)


@pytest.fixture
def echo(monkeypatch) -> EchoModel:
    model = EchoModel()
    for module in (generate, chat):
        monkeypatch.setattr(module, "load_model", lambda options, console: model)
    return model


def test_the_answer_goes_to_standard_output_and_the_statistics_elsewhere(echo, capsys):
    assert main(["generate", "two words", "--stats", "--seed", "5", "--stop", "a", "--stop", "b"]) == 0
    out, err = capsys.readouterr()
    assert out == "two words \n"
    assert "acceptance length 2.00 (bonus included)" in err and "draft 2.0, verify 10.0" in err
    assert echo.asked == [("two words", GenerationSettings(seed=5, stop=("a", "b")))]


def test_a_mistake_of_the_user_is_one_sentence_and_exit_code_2(echo, capsys):
    echo.error = InputError("top_p is 7, but must be in (0, 1].")
    assert main(["generate", "x"]) == 2
    assert capsys.readouterr().err == "paceline: error: top_p is 7, but must be in (0, 1].\n"


def test_settings_are_checked_before_anything_is_loaded(capsys):
    assert main(["generate", "x", "--top-p", "7"]) == 2
    assert capsys.readouterr().err.startswith("paceline: error: top_p is 7.0")


def test_ctrl_c_says_interrupted_and_exits_130(echo, capsys):
    echo.error = KeyboardInterrupt()
    assert main(["generate", "x"]) == 130
    assert capsys.readouterr().err == "paceline: interrupted\n"


def test_a_mistake_of_ours_keeps_its_traceback(echo):
    echo.error = ZeroDivisionError()
    with pytest.raises(ZeroDivisionError):
        main(["generate", "x"])


@pytest.mark.parametrize("argv", [[], ["nothing"], ["generate", "--nope"], ["generate", "x", "--max-tokens", "many"]])
def test_options_that_cannot_be_parsed_exit_2(argv, capsys):
    with pytest.raises(SystemExit) as caught:
        main(argv)
    assert caught.value.code == 2
    assert capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "culprit"),
    [
        (["train", "dflash", "--data", "x", "--run", "y", "--optimizer.learning-rate", "-3"], "learning_rate"),
        (["train", "dflash", "--data", "x", "--run", "y", "--shape.block-size", "1"], "block_size"),
        (["train", "specblock", "--data", "x", "--run", "y", "--batch-size", "0"], "batch_size"),
        (["train", "conversations", "--out", "x", "--starters", "2"], "starters"),
        (["train", "policy", "--labels", "x", "--out", "y", "--dropout", "1"], "dropout"),
    ],
)
def test_impossible_settings_of_training_are_one_sentence(argv, culprit, capsys):
    assert main(argv) == 2
    said = capsys.readouterr().err
    assert said.startswith("paceline: error: ") and said.count("\n") == 1 and culprit in said


def test_every_subcommand_parses_to_its_own_arguments():
    needed = {
        "train": ["dflash", "--data", "d", "--run", "r"],
        "label": ["--out", "labels"],
        "policy": ["report", "labels"],
        "doctor": ["drafter"],
        "export": ["drafter", "--out", "folder"],
    }
    for name, module in COMMANDS.items():
        run, args = parse([name, *needed.get(name, [])])
        assert run is module.run and isinstance(args, module.Arguments)


def test_arguments_are_frozen():
    for module in (generate, chat, demo, bench):
        with pytest.raises(AttributeError):
            module.Arguments().max_tokens = 1


def test_a_reader_that_is_gone_is_met_with_silence():
    code = (
        "import sys\nfrom paceline.cli import COMMANDS, generate, main\n"
        "def talk(args):\n    while True:\n        print('x' * 1000)\n"
        "generate.run = talk\nsys.exit(main(['generate', 'x']))"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdout.read(10)
    process.stdout.close()
    assert process.wait(60) == 141
    assert process.stderr.read() == b""


class TestPrompt:
    def test_comes_from_the_command_line_a_file_or_standard_input(self, tmp_path, monkeypatch):
        (tmp_path / "prompt.txt").write_text("zażółć", encoding="utf-8")
        assert read_prompt("hello", None) == "hello"
        assert read_prompt(None, tmp_path / "prompt.txt") == "zażółć"
        for place in [("-", None), (None, Path("-"))]:
            monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("от".encode())))
            assert read_prompt(*place) == "от"

    @pytest.mark.parametrize(("prompt", "file"), [(None, None), ("x", Path("y"))])
    def test_must_come_from_exactly_one_place(self, prompt, file):
        with pytest.raises(InputError, match="exactly one is expected"):
            read_prompt(prompt, file)

    def test_that_is_not_utf_8_is_one_sentence(self, tmp_path):
        (tmp_path / "latin.txt").write_bytes("né".encode("latin-1"))
        with pytest.raises(InputError, match=r"latin\.txt is not UTF-8 text \(byte 0xe9 at offset 1\)"):
            read_prompt(None, tmp_path / "latin.txt")
        with pytest.raises(InputError, match="PROMPT is not UTF-8"):
            read_prompt(os.fsdecode(b"n\xe9"), None)

    def test_file_that_cannot_be_read_is_one_sentence(self, tmp_path):
        with pytest.raises(InputError, match="cannot be read: No such file"):
            read_prompt(None, tmp_path / "missing")
        with pytest.raises(InputError, match="cannot be read: Is a directory"):
            read_prompt(None, tmp_path)


def _chat(model: EchoModel, stats: bool = False) -> tuple[Chat, io.StringIO]:
    errors = io.StringIO()
    return Chat(model, GenerationSettings(), Console(file=errors, width=200), stats), errors


class TestChat:
    def test_every_turn_sees_the_turns_before_it(self):
        conversation, _ = _chat(EchoModel())
        conversation.turn("first")
        conversation.turn("second")
        assert conversation.model.asked[1][0] == [
            {"role": "user", "content": "first"},
            {"role": "assistant", "content": "first "},
            {"role": "user", "content": "second"},
        ]

    def test_an_interrupted_answer_is_kept_as_far_as_it_came(self, capsys):
        conversation, _ = _chat(EchoModel(KeyboardInterrupt()))
        conversation.turn("one two")
        assert conversation.messages[-1] == {"role": "assistant", "content": "one "}
        assert capsys.readouterr().out == "one  [interrupted]\n"

    def test_a_turn_that_does_not_fit_is_dropped_and_explained(self):
        class Full(EchoModel):
            def stream(self, prompt, settings):
                raise PromptTooLongError("the prompt has 9 tokens, but 8 are the most.")
                yield

        conversation, errors = _chat(Full())
        conversation.turn("x")
        assert conversation.messages == []
        assert errors.getvalue() == "the prompt has 9 tokens, but 8 are the most. /new starts over.\n"

    def test_commands(self, monkeypatch):
        lines = iter(["hello", "", "  ", "/new", "/what now", "again", "/quit", "never"])
        monkeypatch.setattr("builtins.input", lambda _: next(lines))
        conversation, errors = _chat(EchoModel(), stats=True)
        conversation.run()
        assert [message["content"] for message in conversation.messages] == ["again", "again "]
        assert "/what is not a command" in errors.getvalue() and "acceptance length" in errors.getvalue()
        assert next(lines) == "never"

    @pytest.mark.parametrize("leave", [EOFError, KeyboardInterrupt])
    def test_end_of_input_and_ctrl_c_at_the_prompt_leave(self, leave, monkeypatch):
        def read(_):
            raise leave

        monkeypatch.setattr("builtins.input", read)
        conversation, _ = _chat(EchoModel())
        conversation.run()

    def test_reads_lines_from_a_pipe(self, echo, monkeypatch, capsys):
        monkeypatch.setattr(sys, "stdin", io.StringIO("hello\nagain\n"))
        assert main(["chat"]) == 0
        assert capsys.readouterr().out == "hello \nagain \n"

    def test_what_was_learned_is_said_and_saved_at_the_end(self, echo, monkeypatch, capsys, tmp_path):
        class Learned:
            updates = (Update("whole", 1.5, 2.0, 1.5, 40, 3.0, True), Update("heads", 2.0, 1.9, 1.5, 40, 1.5, False))
            saved: tuple = ()

            def save(self, path):
                self.saved += (path,)

        echo.adapter = Learned()
        monkeypatch.setattr(sys, "stdin", io.StringIO("hello\n"))
        assert main(["chat", "--adapt", "--stats", "--save-adapted", str(tmp_path / "new")]) == 0
        assert echo.adapter.saved == (tmp_path / "new",)
        err = capsys.readouterr().err
        assert "learned 2 times in 4.5 s; 1 updates were kept" in err and f"adapted drafter: {tmp_path}" in err

    def test_adapted_weights_go_to_a_new_folder_only(self, echo, capsys, tmp_path):
        (tmp_path / "file").write_text("kept")
        for place, flags, message in (
            (tmp_path / "file", ["--adapt"], "is there already"),
            (tmp_path, ["--adapt"], "is there already"),
            (tmp_path / "file" / "below", ["--adapt"], "cannot be made"),
            (tmp_path / "new", [], "without --adapt"),
        ):
            assert main(["chat", *flags, "--save-adapted", str(place)]) == 2
            assert message in capsys.readouterr().err
        assert not echo.asked

    def test_a_line_that_is_not_utf_8_is_one_sentence(self, echo, monkeypatch, capsys):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"n\xe9\n"), encoding="utf-8"))
        assert main(["chat"]) == 2
        assert capsys.readouterr().err.startswith("paceline: error: a line from standard input is not UTF-8")

    def test_ctrl_c_ends_the_answer_and_the_next_one_the_chat(self):
        code = (
            "import itertools, signal, sys, time\nfrom paceline.cli import chat, main\n"
            "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a shell's background jobs ignore it
            "from paceline.types import Piece\n"
            "class Endless:\n    adapter = None\n    def stream(self, prompt, settings):\n"
            "        for number in itertools.count():\n            time.sleep(0.01)\n"
            "            yield Piece(f'{number} ', ())\n"
            "chat.load_model = lambda options, console: Endless()\nsys.exit(main(['chat']))"
        )
        process = subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        process.stdin.write(b"go\n")
        process.stdin.flush()
        assert process.stdout.read(4) == b"0 1 "
        process.send_signal(signal.SIGINT)
        while process.stdout.read(1) != b"]":
            pass
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
        assert process.stderr.read() == b""


def test_the_summary_of_an_answer_without_rounds_has_no_division_by_zero():
    assert "1 tokens in 0 rounds" in summary(replace(STATISTICS, tokens=1, rounds=0, accepted=0, stage_ms={}), "stop")


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (InputError("seven is not six."), 2, "paceline: error: seven is not six.\n"),
        (PermissionError(13, "Permission denied", "/root/x"), 2, "refused '/root/x': Permission denied.\n"),
        (OSError(28, "No space left on device"), 2, "refused: No space left on device.\n"),
        (KeyboardInterrupt(), 130, "paceline: interrupted\n"),
    ],
)
def test_what_goes_wrong_is_one_sentence_and_an_exit_code(error, code, message, monkeypatch, capsys):
    def run(args):
        raise error

    monkeypatch.setattr("paceline.cli.generate.run", run)
    assert main(["generate", "x"]) == code
    shown = capsys.readouterr().err
    assert shown.endswith(message) and shown.count("\n") == 1


def test_other_errors_are_faults_and_keep_their_traceback(monkeypatch):
    def run(args):
        raise RuntimeError("a fault")

    monkeypatch.setattr("paceline.cli.generate.run", run)
    with pytest.raises(RuntimeError):
        main(["generate", "x"])


@pytest.mark.parametrize("flag", ["--json-schema", "--ebnf"])
def test_a_grammar_file_that_is_not_there_is_said_to_be_missing(flag, tmp_path, capsys):
    for wrong in (tmp_path / "missing.json", tmp_path):
        assert main(["generate", "x", flag, str(wrong)]) == 2
        assert "is neither a file nor a grammar" in capsys.readouterr().err


def test_a_long_grammar_on_the_command_line_is_taken_as_text(echo):
    schema = '{"enum": ["' + "y" * 400 + '"]}'
    assert main(["generate", "x", "--json-schema", schema]) == 0
    assert echo.asked[-1][1].grammar == Grammar("json_schema", schema)


def test_two_grammars_and_a_bias_named_twice_are_refused(capsys):
    assert main(["generate", "x", "--regex", "a", "--ebnf", 'root ::= "a"']) == 2
    assert "regex and ebnf came" in capsys.readouterr().err
    assert main(["generate", "x", "--logit-bias", "5=1", "--logit-bias", "5=2"]) == 2
    assert "names a token twice" in capsys.readouterr().err


def test_who_is_asked_to_terminate_says_so_whatever_it_is_at(monkeypatch, capfd):
    def at_work():
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(60)
        except SystemExit:
            raise AssertionError("parsing takes this for its own") from None

    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr("paceline.cli.main", at_work)
    assert run_command() == 143
    assert capfd.readouterr().err == "paceline: terminated\n"
    assert signal.getsignal(signal.SIGTERM) is before


def test_ctrl_c_while_the_command_is_still_loading_is_one_line(monkeypatch, capsys):
    class Loading:
        def __getattr__(self, name):
            raise KeyboardInterrupt

    monkeypatch.setitem(sys.modules, "paceline.cli", Loading())
    assert run_command() == 130
    assert capsys.readouterr().err == "paceline: interrupted\n"


@pytest.mark.parametrize(
    "flags",
    [["--policy", "joint"], ["--block-size", "5"], ["--tree-budget", "5"], ["--tree", "chain"], ["--no-lookup"]],
)
@pytest.mark.parametrize("command", [["generate", "hello"], ["chat"]])
def test_how_to_draft_is_refused_where_nothing_is_drafted(command, flags, capsys):
    assert main([*command, "--no-draft", *flags]) == 2
    assert f"{flags[0]} and --no-draft came" in capsys.readouterr().err


def test_a_length_of_the_stream_is_of_use_only_where_something_learns():
    with pytest.raises(InputError, match="without --adapt"):
        ModelOptions(adapt_queries=5).load_arguments()
    assert ModelOptions(adapt=True, adapt_queries=5).load_arguments()["adapt"].expected_queries == 5
    assert ModelOptions(adapt=True).load_arguments()["adapt"] is True
