"""Which drafter serves which method."""

import pytest

from paceline.bench.methods import Drafting, build_methods
from paceline.checkpoints.dialect import Dialect
from paceline.checkpoints.specblock import save_specblock
from paceline.checkpoints.z_lab import save_dflash
from paceline.errors import CheckpointError, InputError
from paceline.loading import load
from paceline.types import GenerationSettings
from tiny_dflash import tiny_network
from tiny_folder import write_tiny_folder
from tiny_specblock import tiny_specblock


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """(target, DFlash drafter, SpecBlock drafter)."""
    folder = tmp_path_factory.mktemp("methods")
    save_dflash(tiny_network(), folder / "dflash")
    save_specblock(tiny_specblock(), folder / "specblock")
    return str(write_tiny_folder(folder / "target")), str(folder / "dflash"), str(folder / "specblock")


def test_each_drafter_serves_the_methods_of_its_dialect(folders):
    target, dflash, specblock = folders
    drafting = Drafting((specblock, dflash), policies=("fixed:4:3",))
    assert drafting.by_dialect() == {Dialect.Z_LAB: dflash, Dialect.SPECBLOCK: specblock}
    names = ["plain", "dflash", "mixture", "specblock", "specblock-static"]
    methods = build_methods(names, load(target, "none"), None, drafting, lambda drafter: {})
    with_policy = {"mixture", "specblock", "specblock-static"}
    assert [m.name for m in methods] == [
        shown for name in names for shown in ((name, f"{name}+fixed:4:3") if name in with_policy else (name,))
    ]
    answers = [method.answer([1, 3, 2], GenerationSettings(max_tokens=12)) for method in methods]
    assert len({answer.tokens for answer in answers}) == 1
    static = next(m for m in methods if m.name == "specblock-static")
    assert static.engine.parts.drafter.tree.width is not None


def test_drafters_that_serve_no_method_or_the_same_ones_are_refused(folders, tmp_path):
    target, dflash, _ = folders
    model = load(target, "none")
    with pytest.raises(InputError, match="one of each kind at most"):
        Drafting((dflash, dflash)).by_dialect()
    with pytest.raises(InputError, match="none with a network"):
        Drafting(("prompt_lookup",)).by_dialect()
    with pytest.raises(CheckpointError, match="does not exist"):
        Drafting((str(tmp_path / "nowhere"),)).by_dialect()
    with pytest.raises(InputError, match="needs a specblock --drafter"):
        build_methods(["specblock"], model, None, Drafting((dflash,)), lambda drafter: {})
