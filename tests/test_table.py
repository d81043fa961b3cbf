"""Result tables: read from records alone, set beside the paper's figures."""

import csv
import io
import json
import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from espalier.cli import app
from espalier.errors import InputError
from espalier.report import formats as fmt
from espalier.report import published_figures
from espalier.report.published import MEAN, published_learners
from espalier.report.records import gather, read_recorded
from espalier.report.table import FIVE, TRANSFERS
from tests.tables_help import five, line, made, write_run

# Figures


def test_two_seeds_are_a_mean_and_a_deviation(few: Path) -> None:
    main, _ = made(few)
    independent = line(main, "independent")
    assert independent.seeds == (0, 1)
    assert independent.figures["avg_accuracy"].mean == pytest.approx(0.6875)
    assert independent.figures["avg_accuracy"].deviation == pytest.approx(0.125 / 2**0.5)
    assert line(main, "ewc").figures["avg_accuracy"].deviation is None


def test_transfer_is_seed_by_seed(few: Path) -> None:
    figure = line(made(few)[0], "mntdp-d").figures["transfer"]
    assert figure.mean == pytest.approx((0.375 + 0.25) / 2)
    assert figure.deviation == pytest.approx(0.125 / 2**0.5)
    assert figure.published is not None
    assert figure.published.value == Decimal("0.36")


def test_transfer_is_blank_unless_every_seed_has_its_independent(tmp_path: Path) -> None:
    write_run(tmp_path, "independent", 0)
    write_run(tmp_path, "mntdp-d", 0)
    write_run(tmp_path, "mntdp-d", 1)
    write_run(tmp_path, "er", 0, backbone="alexnet")
    with_resnet, _, with_alexnet, _ = sorted(made(tmp_path), key=lambda table: table.backbone, reverse=True)
    assert line(with_resnet, "independent").figures["transfer"].mean == 0
    assert line(with_resnet, "mntdp-d").figures["transfer"].mean is None
    assert line(with_alexnet, "er").figures["transfer"].mean is None
    assert "No T: independent has not run" in fmt.text([with_resnet])


def test_the_paper_counts_the_first_task_when_it_was_learned(few: Path) -> None:
    _, tasks = made(few)
    ewc = {key: figure.mean for key, figure in line(tasks, "ewc").figures.items()}
    assert ewc == {"task_1": 0.25, "acc_last": 0.5, "acc_first": 0.75, "delta": -0.25}
    published = line(tasks, "ewc").figures["acc_first"].published
    assert published is not None
    assert published.value == Decimal("0.72")


def test_of_a_long_stream_the_thirds_are_shown(tmp_path: Path) -> None:
    write_run(tmp_path, stream="s_long@paper", end=(0.9,) * 5 + (0.5,) * 5 + (0.1,) * 5)
    main, tasks = made(tmp_path)
    figures = line(tasks, "mntdp-d").figures
    shown = {column.key: figures[column.key].mean for column in tasks.columns}
    thirds = {"third_1": 0.9, "third_2": 0.5, "third_3": 0.1}
    assert shown == {"task_1": 0.9, **{key: pytest.approx(value) for key, value in thirds.items()}, "acc_last": 0.1}
    assert "0.500 (0.75 ± 0.0)" in fmt.text([main])


def test_the_mean_is_over_learners_and_seeds_that_have_all_five(tmp_path: Path) -> None:
    five(tmp_path, "mntdp-d", 0)
    five(tmp_path, "independent", 0)
    five(tmp_path, "mntdp-d", 0, "_mini")
    for stream in FIVE[:4]:
        write_run(tmp_path, "mntdp-d", 1, stream, avg_accuracy=1.0)
        write_run(tmp_path, "er", 0, stream)
    *_, mean, mini = made(tmp_path)
    assert mean.stream == MEAN
    assert [(each.learner, each.seeds) for each in mean.lines] == [("independent", (0,)), ("mntdp-d", (0,))]
    figures = line(mean, "mntdp-d").figures
    assert figures["avg_accuracy"].mean == pytest.approx(0.5)
    assert figures["avg_accuracy"].published is not None
    assert figures["avg_accuracy"].published.value == Decimal("0.64")
    assert [figures[column.key].mean for column in TRANSFERS] == [0.0] * 5
    assert figures["transfer_s_out"].published is not None
    assert mini.stream == f"{MEAN}_mini"
    assert line(mini, "mntdp-d").figures["avg_accuracy"].published is None


def test_a_mean_over_all_five_has_no_rebuilt_runs_among_others(tmp_path: Path) -> None:
    five(tmp_path / "runs", "mntdp-d", 0)
    for stream in FIVE[:4]:
        write_run(tmp_path / "rebuilt", stream=stream, avg_accuracy=1.0, rebuilt_from={})
    assert [each.name for each in made(tmp_path)[-1].lines] == ["mntdp-d"]
    write_run(tmp_path / "rebuilt", stream=FIVE[4], avg_accuracy=1.0, rebuilt_from={})
    means = {each.name: each.figures["avg_accuracy"].mean for each in made(tmp_path)[-1].lines}
    assert means == {"mntdp-d": 0.5, "mntdp-d (rebuilt)": 1.0}


def test_tables_and_lines_have_the_order_of_the_registries(tmp_path: Path) -> None:
    for learner in ("own", "er", "independent"):
        for stream in ("s_pl", "my_stream", "s_minus"):
            write_run(tmp_path, learner, stream=stream)
    found = made(tmp_path)
    assert [table.stream for table in found[::2]] == ["s_minus", "s_pl", "my_stream"]
    assert [each.learner for each in found[0].lines] == ["independent", "er", "own"]


def test_only_learners_of_the_paper_with_that_backbone_are_added(few: Path) -> None:
    names = [each.learner for each in made(few, all_published=True)[0].lines]
    assert names[:3] == ["independent", "mntdp-d", "ewc"]
    assert sorted(names) == sorted(published_learners(published_figures(), "s_minus", "resnet"))
    assert "hat" not in names


# The command


def run(*arguments: str | Path) -> Any:
    return CliRunner().invoke(app, ["table", *map(str, arguments)])


def test_the_command_prints_or_writes(few: Path, tmp_path: Path) -> None:
    printed = run(few, "--format", "latex")
    assert printed.exit_code == 0
    file = tmp_path / "deep" / "tables.tex"
    assert run(few, "--format", "latex", "--out", file).exit_code == 0
    assert file.read_text(encoding="utf-8") == printed.stdout
    assert [each.name for each in file.parent.iterdir()] == ["tables.tex"]


def test_the_papers_figures_can_be_left_out_or_all_be_shown(few: Path) -> None:
    assert "published" not in run(few, "--format", "csv", "--no-published").stdout
    assert "pnn" not in run(few, "--format", "csv").stdout
    assert "s_minus,resnet,paper,pnn,,,," in run(few, "--format", "csv", "--all-published").stdout
    assert isinstance(run(few, "--no-published", "--all-published").exception, InputError)


def test_folders_that_overlap_count_once(few: Path) -> None:
    assert run(few, few / "s_minus--ewc--resnet--seed0").stdout == run(few).stdout


def test_the_same_run_twice_is_refused(tmp_path: Path) -> None:
    one, other = write_run(tmp_path / "cpu"), write_run(tmp_path / "gpu")
    with pytest.raises(InputError, match=f"{re.escape(one.name)}.*same run") as caught:
        made(tmp_path)
    assert str(other) in str(caught.value)


def test_a_run_and_its_rebuilding_are_put_side_by_side(tmp_path: Path) -> None:
    for seed in (0, 1):
        write_run(tmp_path / "runs", "independent", seed, end=(0.5, 0.25))
        write_run(tmp_path / "runs", "mntdp-d", seed, end=(0.5, 0.75), avg_accuracy=0.5 + seed / 4)
    rebuilt: dict[str, Any] = {"rebuilt_from": {"hardware": {"gpu": "NVIDIA X"}}}
    write_run(tmp_path / "rebuilt", "mntdp-d", 1, end=(0.5, 0.625), avg_accuracy=1.0, **rebuilt)
    main, _ = made(tmp_path)
    assert [(each.name, each.seeds) for each in main.lines] == [
        ("independent", (0, 1)),
        ("mntdp-d", (0, 1)),
        ("mntdp-d (rebuilt)", (1,)),
    ]
    found = [(each.figures["avg_accuracy"].mean, each.figures["transfer"].mean) for each in main.lines[1:]]
    assert found == [(0.625, 0.5), (1.0, 0.375)]
    assert all(each.figures["avg_accuracy"].published for each in main.lines), "the paper's stands beside both"
    assert "Rebuilt: what a run had chosen, trained again;" in fmt.markdown([main])
    assert "Seeds 0, 1 (independent, mntdp-d), 1 (mntdp-d (rebuilt));" in fmt.markdown([main])
    rows = list(csv.DictReader(io.StringIO(fmt.as_csv([main]))))
    assert [(row["learner"], row["rebuilt"]) for row in rows[1:]] == [("mntdp-d", "false"), ("mntdp-d", "true")]
    write_run(tmp_path / "again", "mntdp-d", 1, **rebuilt)
    with pytest.raises(InputError, match="same run"):
        made(tmp_path)


def test_where_machines_differ_each_is_told_with_its_learners(few: Path) -> None:
    home = few / "s_minus--ewc--resnet--seed0" / "tried" / "strength-100" / "run.json"
    asked = json.loads(home.read_text())
    home.write_text(json.dumps(asked | {"hardware": {"machine": "x86_64", "cores": 2, "threads": 1}}))
    assert (
        fmt.text(made(few))
        .splitlines()[-1]
        .endswith(
            "protocol paper; NVIDIA H200, 16 x86_64 cores; espalier 0.1.0, torch 2.11.0 (independent, mntdp-d); "
            "2 x86_64 cores; espalier 0.1.0, torch 2.11.0 (ewc)."
        )
    )


def test_a_tuned_run_needs_only_its_own_record(few: Path) -> None:
    trial = few / "s_minus--ewc--resnet--seed0" / "tried" / "strength-100"
    for file in trial.iterdir():
        file.unlink()
    main, tasks = made(few)
    assert line(main, "ewc").hardware == ()
    assert tasks.columns[0].title == "t1 set_1"


def test_a_task_that_depends_on_the_seed_has_all_its_titles(few: Path) -> None:
    records = few / "s_minus--mntdp-d--resnet--seed1" / "records.jsonl"
    records.write_text(records.read_text().replace("set_1", "another"))
    tasks = made(few)[1]
    assert [column.title for column in tasks.columns][:2] == ["t1 another / set_1", "t2 set_2"]


def test_bad_input_is_told(tmp_path: Path, few: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=r"no finished run in .*empty"):
        gather([few, tmp_path / "empty"], read_recorded)
    with pytest.raises(InputError, match=r"no folder .*nowhere"):
        gather([tmp_path / "nowhere"], read_recorded)


def test_one_bad_run_does_not_keep_the_others_from_being_shown(few: Path) -> None:
    whole, left_out = gather([few], read_recorded)
    assert left_out == []
    own_records = [run.folder for run in whole if (run.folder / "records.jsonl").is_file()]
    places = damaged, gone, garbled = own_records[:3]
    (damaged / "result.json").write_text("{")
    (gone / "result.json").unlink()
    (garbled / "records.jsonl").write_text("garbage\n")
    found, left_out = gather([few, few, gone], read_recorded)
    assert len(found) == len(whole) - 3
    assert [sum(str(folder) in told for told in left_out) for folder in places] == [1, 1, 1]
    told = run(few)
    assert told.exit_code == 0
    assert "left out: " in told.stderr
    assert "has not finished" in told.stderr
    assert "left out" not in told.stdout
    for each in found:
        (each.folder / "result.json").write_text("[]")
    with pytest.raises(InputError, match=r"result\.json"):
        gather([few], read_recorded)


def test_other_bad_input_is_told(tmp_path: Path, few: Path) -> None:
    assert run(few, "--format", "pdf").exit_code == 2
    (tmp_path / "file").write_text("")
    assert "choose another file" in str(run(few, "--out", tmp_path / "file" / "x").exception)
