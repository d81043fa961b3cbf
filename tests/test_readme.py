"""The Python in README and docs works when pasted."""

import re
from pathlib import Path

import pytest

import espalier


@pytest.mark.parametrize("page", ["README.md", "docs/data.md", "docs/learners.md"])
def test_python_blocks_run(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ESPALIER_DATA", str(tmp_path))
    known = dict(espalier.STREAMS)
    text = Path(page).read_text()
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert blocks
    for block in blocks:
        exec(compile(block, page, "exec"), {})
    assert capsys.readouterr().out.strip()
    for name in espalier.STREAMS.keys() - known:
        del espalier.STREAMS[name]


def test_the_two_commands_stand_in_the_readme_and_the_makefile() -> None:
    targets = Path("Makefile").read_text()
    for command in ("demo", "test"):
        assert f"make {command}" in Path("README.md").read_text()
        assert f"\n{command}:" in targets
