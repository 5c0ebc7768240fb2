"""A user's own module that has the name of one of Cantata's packages is named before a run fails on it."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from cantata.config.user_code.function_source import fault_of
from cantata.config.user_code.modules import clash_of
from cantata.errors import StepError
from cantata.operation import packages
from cantata.surfaces.cli.main import submit
from cantata_workers.tools.functions import load

HIDDEN = "is hidden by Cantata's package of that name; rename it"


def write(folder: Path, **texts: str) -> None:
    for name, text in texts.items():
        file = folder / f"{'/'.join(name.split('__', 1))}.py"
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)


@pytest.mark.parametrize("name", packages.OURS)
def test_a_function_of_a_package_of_that_name_is_a_fault(tmp_path: Path, name: str) -> None:
    write(tmp_path, **{f"{name}__jobs": "def work(): return 1"})

    assert HIDDEN in str(fault_of(f"{name}.jobs:work", folder=tmp_path))
    with pytest.raises(StepError, match=HIDDEN):
        load(f"{name}.jobs:work", str(tmp_path))


@pytest.mark.parametrize(
    "text",
    [
        "import cantata.jobs",
        "from cantata import jobs",
        "from cantata.jobs import work",
        "def work():\n    import cantata",
    ],
)
def test_a_module_that_imports_one_is_a_fault_with_its_name(tmp_path: Path, text: str) -> None:
    write(
        tmp_path,
        cantata__jobs="def work(): return 1",
        shop="import desk\nfrom desk import work",
        desk=f"{text}\n\ndef work(): return 1",
    )

    assert fault_of("shop:work", folder=tmp_path) == (
        f"module 'shop' cannot be imported: the folder's own 'cantata', which 'desk' imports, {HIDDEN}"
    )
    with pytest.raises(StepError, match=HIDDEN):
        load("shop:work", str(tmp_path))


def test_a_folder_of_that_name_that_nothing_imports_is_none(tmp_path: Path) -> None:
    write(tmp_path, cantata__jobs="x = 1", shop="from . import other\nimport json\n\ndef work(): return 1")

    assert fault_of("shop:work", folder=tmp_path) is None
    assert clash_of("shop", None) is None
    assert clash_of("cantata.config.loading", packages.HERE) is None, "Cantata's own"


def test_submit_check_names_it(tmp_path: Path) -> None:
    write(tmp_path, cantata="def work(): return 1")
    (tmp_path / "shop.yaml").write_text("version: 1\ntools: {job: {function: 'cantata:work'}}\n")

    done = CliRunner().invoke(submit, ["check", str(tmp_path / "shop.yaml")])

    assert (done.exit_code, HIDDEN in done.output) == (2, True), done.output
