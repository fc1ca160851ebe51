"""`shardproof verify`, `inspect` and `explain`: options, exit codes, and what goes to which stream."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from shardproof import __version__
from shardproof.ir.module import ModuleError
from shardproof.solver.codes import CODES
from shardproof.solver.verdict import ASSUMPTION_KINDS, JSON_FIELDS
from shardproof.tools.command_line import parse_mesh, run
from shardproof.tools.failure import UsageProblem

from .conftest import Solver, refuted, unknown, verified

Capture = pytest.CaptureFixture[str]


@pytest.mark.parametrize(("result", "status"), [(verified(), 0), (refuted(), 1), (unknown(), 2)])
def test_exit_code_is_the_verdict(solver: Solver, capsys: Capture, result: object, status: int) -> None:
    solver.result = result  # type: ignore[assignment]
    assert run(["verify", "a.pb", "b.pb"]) == status
    out, err = capsys.readouterr()
    assert out == result.text()  # type: ignore[attr-defined]
    assert err == ""


def test_options_reach_the_solver(solver: Solver, tmp_path: Path) -> None:
    saved = tmp_path / "saved.toml"
    line = ["verify", "a.pb", "b.pb", "--mesh", "dp=2,tp=4", "--relation", "r.toml", "--outputs", "any"]
    proof = tmp_path / "proof.cert"
    line += ["--lemmas", "a.lemma", "--lemmas", "b.lemma"]
    line += ["--certificate", str(proof), "--goals", str(tmp_path)]
    line += ["--save-relation", str(saved), "--strict", "--assume", "x", "--assume", "y", "--timeout", "2.5"]
    line += ["--initializers", "inputs"]
    assert run(line) == 0
    assert solver.programs == (Path("a.pb"), Path("b.pb"))
    progress = solver.options.pop("progress")
    assert callable(progress)
    assert solver.options == {
        "relation": Path("r.toml"),
        "mesh": {"dp": 2, "tp": 4},
        "outputs": "any",
        "timeout": 2.5,
        "strict": True,
        "assume": ("x", "y"),
        "save_relation": saved,
        "lemmas": (Path("a.lemma"), Path("b.lemma")),
        "certificate": proof,
        "goals": tmp_path,
        "initializers": "inputs",
    }


def test_defaults(solver: Solver) -> None:
    assert run(["verify", "a.pb", "r0.pb", "r1.pb"]) == 0
    assert solver.programs == (Path("a.pb"), [Path("r0.pb"), Path("r1.pb")])
    del solver.options["progress"]
    assert solver.options == {
        "relation": None,
        "mesh": None,
        "outputs": "natural",
        "timeout": None,
        "strict": False,
        "assume": (),
        "save_relation": None,
        "lemmas": (),
        "certificate": None,
        "goals": None,
        "initializers": None,
    }


def test_json_goes_to_stdout_or_the_file(solver: Solver, capsys: Capture, tmp_path: Path) -> None:
    assert run(["verify", "a.pb", "b.pb", "--format", "json"]) == 0
    printed = capsys.readouterr().out
    assert tuple(json.loads(printed)) == JSON_FIELDS
    target = tmp_path / "answer.json"
    assert run(["verify", "a.pb", "b.pb", "--format", "json", "-o", str(target)]) == 0
    assert capsys.readouterr().out == ""
    assert target.read_text() == printed


@pytest.mark.parametrize(
    "line",
    [
        [],
        ["prove"],
        ["--bogus"],
        ["verify"],
        ["verify", "a.pb"],
        ["verify", "a.pb", "b.pb", "--bogus"],
        ["verify", "a.pb", "b.pb", "--format", "xml"],
        ["verify", "a.pb", "b.pb", "--outputs", "some"],
        ["verify", "a.pb", "b.pb", "--timeout", "soon"],
        ["verify", "a.pb", "b.pb", "--timeout", "0"],
        ["verify", "a.pb", "b.pb", "--timeout", "nan"],
        ["verify", "a.pb", "b.pb", "--timeout", "-1"],
        ["verify", "a.pb", "b.pb", "--mesh", "tp"],
        ["verify", "a.pb", "b.pb", "-o", "."],
        ["verify", "a.pb", "b.pb", "-o", "no/such/folder/x.json"],
        ["verify", "a.pb", "b.pb", "--save-relation", "no/such/folder/x.toml"],
        ["verify", "a.pb", "b.pb", "--relation"],
        ["inspect"],
        ["explain", "Z99"],
        ["explain", "U02", "U03"],
    ],
)
def test_wrong_usage_is_exit_3(solver: Solver, capsys: Capture, line: list[str]) -> None:
    assert run(line) == 3
    out, err = capsys.readouterr()
    assert out == ""
    assert solver.programs is None
    if line:
        assert err.startswith("error[E03]: ")
        assert err.count("\n") == 1
        assert not err.rstrip("\n").endswith(".")


@pytest.mark.parametrize(
    "line",
    [
        ["verify", "--format", "json"],
        ["verify", "a.pb", "b.pb", "--format=json", "--bogus"],
        ["verify", "a.pb", "b.pb", "--format", "json", "--mesh", "tp=two"],
    ],
)
def test_wrong_usage_as_json(solver: Solver, capsys: Capture, line: list[str]) -> None:
    assert run(line) == 3
    out, err = capsys.readouterr()
    answer = json.loads(out)
    assert answer == {"version": __version__, "error": {"code": "E03", "message": answer["error"]["message"]}}
    assert err == f"error[E03]: {answer['error']['message']}\n"


def test_an_input_is_never_overwritten(solver: Solver, capsys: Capture, tmp_path: Path) -> None:
    source = tmp_path / "a.pb"
    source.write_bytes(b"program")
    for option in ("-o", "--save-relation"):
        assert run(["verify", str(source), "b.pb", option, str(source)]) == 3
    assert run(["inspect", str(source), "-o", str(source)]) == 3
    assert source.read_bytes() == b"program"
    assert capsys.readouterr().err.count("it is one of the inputs") == 3


def test_bad_input_is_exit_3(solver: Solver, capsys: Capture) -> None:
    solver.result = ModuleError("b.pb ends in the middle\nof instruction 7")
    assert run(["verify", "a.pb", "b.pb"]) == 3
    assert capsys.readouterr() == ("", "error[E01]: b.pb ends in the middle of instruction 7\n")
    assert run(["verify", "a.pb", "b.pb", "--format", "json"]) == 3
    out, err = capsys.readouterr()
    message = "b.pb ends in the middle of instruction 7"
    assert json.loads(out) == {"version": __version__, "error": {"code": "E01", "message": message}}
    assert err == f"error[E01]: {message}\n"


def test_a_file_that_cannot_be_read_is_exit_3(solver: Solver, capsys: Capture) -> None:
    solver.result = FileNotFoundError(2, "No such file or directory", "b.pb")
    assert run(["verify", "a.pb", "b.pb"]) == 3
    assert capsys.readouterr().err == "error[E01]: cannot read b.pb: no such file or directory\n"


def test_a_bad_relation_file_is_e02(solver: Solver, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    class RelationError(ModuleError):
        pass

    relation = ModuleType("shardproof.solver.relations.relation")
    relation.RelationError = RelationError  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, relation.__name__, relation)
    solver.result = RelationError("r.toml: no input is named `p99`")
    assert run(["verify", "a.pb", "b.pb"]) == 3
    assert capsys.readouterr().err == "error[E02]: r.toml: no input is named `p99`\n"


def test_an_error_may_carry_its_code(solver: Solver, capsys: Capture) -> None:
    class RankError(ModuleError):
        code = "E05"

    solver.result = RankError("rank 1 is missing")
    assert run(["verify", "a.pb", "b.pb"]) == 3
    assert capsys.readouterr().err == "error[E05]: rank 1 is missing\n"


def test_an_internal_error_is_exit_4_without_traceback(solver: Solver, capsys: Capture) -> None:
    solver.result = RuntimeError("class 7\nhas no root")
    assert run(["verify", "a.pb", "b.pb"]) == 4
    out, err = capsys.readouterr()
    assert out == ""
    assert err == (
        "error[E04]: internal error: RuntimeError: class 7 has no root; use --verbose for the traceback\n"
    )
    assert run(["verify", "a.pb", "b.pb", "--verbose", "--format", "json"]) == 4
    out, err = capsys.readouterr()
    assert json.loads(out)["error"]["code"] == "E04"
    assert "Traceback" in err
    assert err.endswith("error[E04]: internal error: RuntimeError: class 7 has no root\n")


@pytest.mark.parametrize("error", [RecursionError(), MemoryError(), AssertionError(), KeyError("p9")])
def test_no_exception_escapes(solver: Solver, capsys: Capture, error: BaseException) -> None:
    solver.result = error
    assert run(["verify", "a.pb", "b.pb"]) == 4
    assert "Traceback" not in capsys.readouterr().err


def test_interruption_is_130(solver: Solver, capsys: Capture) -> None:
    solver.result = KeyboardInterrupt()
    assert run(["verify", "a.pb", "b.pb"]) == 130
    assert capsys.readouterr() == ("", "interrupted\n")


def test_ctrl_c_in_a_real_process() -> None:
    program = (
        "import signal, sys, time, types\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "stub = types.ModuleType('shardproof.solver.verify')\n"
        "def verify(*a, **k):\n"
        "    print('running', flush=True)\n"
        "    time.sleep(60)\n"
        "stub.verify = verify\n"
        "sys.modules[stub.__name__] = stub\n"
        "from shardproof.tools.command_line import main\n"
        "sys.argv = ['shardproof', 'verify', 'a', 'b']\n"
        "main()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "running\n"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=20)
    assert (process.returncode, out, err) == (130, "", "interrupted\n")


def test_a_timeout_is_unknown(solver: Solver, capsys: Capture) -> None:
    solver.result = unknown(code="U04", message="stopped after 0.5 s", blocked=None, location=None)
    assert run(["verify", "a.pb", "b.pb", "--timeout", "0.5"]) == 2
    assert solver.options["timeout"] == 0.5
    assert capsys.readouterr().out.startswith("unknown[U04]: stopped after 0.5 s\n")


def test_mesh() -> None:
    assert list(parse_mesh("dp=2, tp = 4").items()) == [("dp", 2), ("tp", 4)]
    for text in ("", "tp", "tp=", "=2", "tp=0", "tp=-1", "tp=2,", "tp=2,tp=4", "t p=2", "tp=2.0", "tp=²"):
        with pytest.raises(UsageProblem):
            parse_mesh(text)


def test_version(capsys: Capture) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"shardproof {__version__}\n"


def test_help_is_exit_0(capsys: Capture) -> None:
    assert run(["verify", "--help"]) == 0
    out = capsys.readouterr().out
    for option in (
        "--mesh",
        "--relation",
        "--save-relation",
        "--outputs",
        "--strict",
        "--assume",
        "--format",
    ):
        assert option in out
    assert "--timeout" in out and "--verbose" in out


def test_explain(capsys: Capture) -> None:
    assert run(["explain"]) == 0
    listed = capsys.readouterr().out
    for code, entry in CODES.items():
        assert f"{code}  {entry.title}\n" in listed
        assert run(["explain", code.lower()]) == 0
        assert capsys.readouterr().out == f"{code}: {entry.title}\n\n{entry.explanation}\n"
    for kind, claim in ASSUMPTION_KINDS.items():
        assert kind in listed
        assert run(["explain", kind]) == 0
        assert capsys.readouterr().out == f"{kind}: {claim}\n"


def test_completion_script() -> None:
    shown = subprocess.run(
        [sys.executable, "-m", "shardproof"],
        env={"_SHARDPROOF_COMPLETE": "complete_bash", "COMP_WORDS": "shardproof ver", "COMP_CWORD": "1"},
        capture_output=True,
        text=True,
    )
    assert sorted(shown.stdout.split()) == ["verify", "verify-xla"]


def test_a_reader_that_goes_away_is_no_error() -> None:
    shown = subprocess.run(
        f"{sys.executable} -m shardproof explain | true; echo ${{PIPESTATUS[0]}}",
        shell=True,
        executable="/bin/bash",
        capture_output=True,
        text=True,
    )
    assert (shown.stdout, shown.stderr) == ("0\n", "")


def test_heavy_libraries_stay_unloaded(tmp_path: Path) -> None:
    program = (
        "import sys\n"
        "from shardproof.tools.command_line import run\n"
        "run(['--version']); run(['explain']); run(['verify', '--help'])\n"
        f"print(run(['verify', {str(tmp_path / 'a.pb')!r}, {str(tmp_path / 'b.pb')!r}]), file=sys.stderr)\n"
        "names = {'torch', 'jax', 'jaxlib', 'onnx', 'egglog', 'z3'}\n"
        "print('loaded:', sorted(names & set(sys.modules)))\n"
    )
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert shown.stdout.splitlines()[-1] == "loaded: []", shown.stderr
    assert shown.stderr.splitlines()[-1] == "3", shown.stderr
