"""Imports point down: the layers of the design, enforced on every import there is, lazy ones included."""

import ast
import subprocess
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "paceline"

# From the top down. A module imports only from rows below its own. Within a row, `free` parts may import
# each other and `apart` parts may not. A part is a package or module directly under paceline.
LAYERS: list[tuple[str, set[str]]] = [
    ("free", {"__init__", "__main__"}),
    ("free", {"cli"}),
    ("apart", {"server", "bench", "train", "scale", "proof", "label", "doctor", "export"}),
    (
        "free",
        {"engine", "text_model", "loading", "sources", "embedded", "provenance", "calibrate", "replay", "attach"}
        | {"target_loading", "drafter_loading"}
        | {"adaptation"},
    ),
    ("free", {"grammar", "json_schema"}),
    ("apart", {"embedded_conversion"}),  # runs in a process of its own
    ("free", {"learning"}),
    ("free", {"decode", "plain", "choice", "sequence", "near_ties"}),
    ("apart", {"target", "drafters", "policies"}),
    ("apart", {"checkpoints"}),
    ("apart", {"models"}),
    ("apart", {"kernels"}),
    ("free", {"acceptance", "sampled_acceptance", "tree"}),
    (
        "free",
        {
            "sampling",
            "penalties",
            "noise",
            "noise_host",
            "kv_cache",
            "text",
            "prompts",
            "prompt_sets",
            "labels",
            "device_clock",
        },
    ),
    ("free", {"result_files", "tensor_files", "records", "processor"}),
    ("free", {"metrics", "types", "registry", "errors", "host_jit", "prefixes"}),
]
ROW_OF = {part: row for row, (_, parts) in enumerate(LAYERS) for part in parts}


def sources(root: Path) -> dict[str, str]:
    """Text of every module, keyed by dotted name below the package (`tree.chain`, `tree.__init__`)."""
    return {
        ".".join(path.relative_to(root).with_suffix("").parts): path.read_text("utf-8")
        for path in sorted(root.rglob("*.py"))
    }


def imports(module: str, text: str, modules: set[str]) -> set[str]:
    """Modules of the package that `text` imports anywhere in it, type-checking blocks included."""
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = _absolute(module, node)
            names = [f"{base}.{alias.name}" for alias in node.names]
        else:
            continue
        found |= {_module_of(name, modules) for name in names if name.split(".")[0] == "paceline"}
    return found - {module}


def _absolute(module: str, node: ast.ImportFrom) -> str:
    if node.level == 0:
        return node.module or ""
    package = ["paceline", *module.split(".")][: -node.level]
    return ".".join([*package, node.module] if node.module else package)


def _module_of(name: str, modules: set[str]) -> str:
    """The module that `paceline.a.b.c` names: the longest prefix that is one."""
    parts = name.split(".")[1:]
    for length in range(len(parts), 0, -1):
        prefix = ".".join(parts[:length])
        for candidate in (prefix, f"{prefix}.__init__"):
            if candidate in modules:
                return candidate
    return "__init__"


def violations(texts: dict[str, str]) -> list[str]:
    """One sentence for each import that does not point down and each module without a layer."""
    wrong = []
    for module, text in texts.items():
        part = module.split(".")[0]
        if part not in ROW_OF:
            wrong.append(f"{module} has no layer: give {part!r} its place in LAYERS")
            continue
        for imported in sorted(imports(module, text, set(texts))):
            other = imported.split(".")[0]
            if other != part and other in ROW_OF and not _may_import(part, other):
                wrong.append(f"{module} imports {imported}, which is not below it")
    return wrong


def _may_import(part: str, other: str) -> bool:
    row, other_row = ROW_OF[part], ROW_OF[other]
    return other_row > row or (other_row == row and LAYERS[row][0] == "free")


def test_every_module_imports_only_modules_below_it():
    assert violations(sources(SOURCE)) == []


def test_no_modules_import_each_other_in_a_circle():
    texts = sources(SOURCE)
    graph = {module: imports(module, text, set(texts)) for module, text in texts.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


@pytest.mark.parametrize(
    ("module", "planted"),
    [
        ("tree.chain", "from paceline.drafters.base import Drafter"),
        ("tree.chain", "def f():\n    import paceline.engine"),
        ("target.base", "from paceline.policies import fixed"),
        ("drafters.dflash", "from ..target.base import Target"),
        ("models.dflash", "from paceline import checkpoints"),
        ("train.trainer", "from paceline.bench.run import run"),
        ("errors", "from paceline import load"),
        ("errors", "if TYPE_CHECKING:\n    from .sampling import sample"),
    ],
)
def test_a_planted_violation_is_caught(module, planted):
    others = ["__init__", "drafters.base", "engine", "policies.fixed", "policies.__init__", "target.base"]
    others += ["checkpoints.__init__", "bench.run", "loading", "sampling"]
    assert len(violations(dict.fromkeys(others, "") | {module: planted})) == 1


def test_an_import_from_below_and_one_from_the_same_package_are_fine():
    texts = {
        "tree.__init__": "",
        "tree.chain": "from paceline.tree import x\nfrom paceline.errors import InputError\nimport torch",
        "errors": "",
    }
    assert violations(texts) == []


def test_a_module_without_a_layer_is_caught():
    assert violations({"novelty.thing": ""}) == ["novelty.thing has no layer: give 'novelty' its place in LAYERS"]


def test_no_module_reads_environment_variables():
    readers = [
        f"{module}: line {node.lineno}"
        for module, text in sources(SOURCE).items()
        for node in ast.walk(ast.parse(text))
        if (isinstance(node, ast.Attribute) and node.attr in {"environ", "environb", "getenv"})
        or (isinstance(node, ast.alias) and node.name in {"environ", "environb", "getenv"})
    ]
    assert readers == []


@pytest.mark.parametrize("argv", [["--help"], ["generate", "--help"], ["chat", "--help"]])
def test_help_does_not_import_torch(argv):
    code = (
        "import sys\nfrom paceline.cli import main\n"
        "try:\n    main(sys.argv[1:])\nexcept SystemExit as error:\n    assert error.code == 0\n"
        "assert 'torch' not in sys.modules and 'transformers' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code, *argv], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "usage: paceline" in done.stdout
