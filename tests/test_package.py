"""The front door: `from paceline import ...` works lazily."""

import subprocess
import sys

import pytest

import paceline


def _python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)


def test_importing_the_package_imports_nothing_else():
    done = _python("import paceline, sys; assert not {'torch', 'numpy', 'tyro'} & set(sys.modules)")
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_load_is_the_function_and_stays_it_although_a_module_has_its_name():
    done = _python(
        "from paceline import load\nfrom paceline import load as again\nimport paceline\n"
        "assert load is again is paceline.load and callable(load)"
    )
    assert done.returncode == 0, done.stderr


def test_every_public_name_is_there():
    for name in paceline.__all__:
        assert getattr(paceline, name) is not None
    assert set(paceline.__all__) <= set(dir(paceline))


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = paceline.nothing
