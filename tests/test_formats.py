"""Result tables in four formats."""
# ruff: noqa: E501 (what is printed is as wide as it is)

import csv
import io
from pathlib import Path

import pytest

from espalier.report import formats as fmt
from espalier.report import tables
from espalier.report.published import MEAN
from espalier.report.records import gather, read_recorded
from espalier.report.table import FIVE
from tests.tables_help import five, made, write_run

NOTES = """\
±: standard deviation over the seeds.
In parentheses: the paper's figure.
†: tuned on the whole stream, with sight of the later tasks.
‡: only a part of the datasets was there: cifar10.
Seeds 0, 1 (independent, mntdp-d), 0 (ewc); protocol paper; NVIDIA H200, 16 x86_64 cores; espalier 0.1.0, torch 2.11.0.
"""

TEXT = (
    """\
s_minus, resnet, protocol paper
learner      seeds  A                     F                      T                       LCA                   memory MB          TFLOPs             seconds
independent  2      0.688 ± 0.088 (0.56)  +0.000 ± 0.000 (0.00)  +0.000 ± 0.000 (0.00)   0.100 ± 0.000 (0.10)  14.6 ± 0.0 (14.6)  1746 ± 0 (292.0)   12.5 ± 0.0
mntdp-d      2      0.750 ± 0.000 (0.67)  +0.000 ± 0.000 (0.00)  +0.312 ± 0.088 (+0.36)  0.100 ± 0.000 (0.16)  9.20 ± 0.00 (9.2)  1746 ± 0 (1876.0)  12.5 ± 0.0
ewc †‡       1      0.375 (0.52†)         -0.125 (-0.02†)        +0.125 (+0.35†)         0.100 (0.13†)         9.20 (31.5†)       0.0312 (344.0†)    12.5
"""
    + NOTES
    + """
s_minus, resnet, protocol paper: test accuracy of the tasks at the end
learner      seeds  t1 set_1       t2 set_2              t1 when learned       t2 - t1 when learned
independent  2      0.750 ± 0.000  0.438 ± 0.088 (0.36)  0.750 ± 0.000 (0.72)  -0.312 ± 0.088 (-0.35)
mntdp-d      2      0.750 ± 0.000  0.750 ± 0.000 (0.72)  0.750 ± 0.000 (0.72)  +0.000 ± 0.000 (0.00)
ewc †‡       1      0.250          0.500 (0.71†)         0.750 (0.72†)         -0.250 (-0.01†)
"""
    + NOTES
)

MARKDOWN = (
    """\
### s_minus, resnet, protocol paper: test accuracy of the tasks at the end

| learner | seeds | t1 set_1 | t2 set_2 | t1 when learned | t2 - t1 when learned |
| --- | ---: | ---: | ---: | ---: | ---: |
| independent | 2 | 0.750 ± 0.000 | 0.438 ± 0.088 (0.36) | 0.750 ± 0.000 (0.72) | -0.312 ± 0.088 (-0.35) |
| mntdp-d | 2 | 0.750 ± 0.000 | 0.750 ± 0.000 (0.72) | 0.750 ± 0.000 (0.72) | +0.000 ± 0.000 (0.00) |
| ewc †‡ | 1 | 0.250 | 0.500 (0.71†) | 0.750 (0.72†) | -0.250 (-0.01†) |

"""
    + NOTES.strip().replace("\n", "<br>\n")
    + "\n"
)

LATEX = r"""% for a document with \usepackage{booktabs} and \usepackage{graphicx}

\begin{table}[ht]
\centering
\caption{s\_minus, resnet, protocol paper: test accuracy of the tasks at the end}
\resizebox{\textwidth}{!}{%
\begin{tabular}{lrrrrr}
\toprule
learner & seeds & t1 set\_1 & t2 set\_2 & t1 when learned & t2 $-$ t1 when learned \\
\midrule
independent & 2 & 0.750 $\pm$ 0.000 & 0.438 $\pm$ 0.088 (0.36) & 0.750 $\pm$ 0.000 (0.72) & $-$0.312 $\pm$ 0.088 ($-$0.35) \\
mntdp-d & 2 & 0.750 $\pm$ 0.000 & 0.750 $\pm$ 0.000 (0.72) & 0.750 $\pm$ 0.000 (0.72) & +0.000 $\pm$ 0.000 (0.00) \\
ewc $^\dagger$$^\ddagger$ & 1 & 0.250 & 0.500 (0.71$^\dagger$) & 0.750 (0.72$^\dagger$) & $-$0.250 ($-$0.01$^\dagger$) \\
\bottomrule
\end{tabular}}
\footnotesize
\par $\pm$: standard deviation over the seeds.
\par In parentheses: the paper's figure.
\par $^\dagger$: tuned on the whole stream, with sight of the later tasks.
\par $^\ddagger$: only a part of the datasets was there: cifar10.
\par Seeds 0, 1 (independent, mntdp-d), 0 (ewc); protocol paper; NVIDIA H200, 16 x86\_64 cores; espalier 0.1.0, torch 2.11.0.
\end{table}
"""

CSV = """\
stream,backbone,protocol,learner,rebuilt,seeds,tuned,data_complete,hardware,versions,published_tuning,task_1,task_1_sd,acc_last,acc_last_sd,acc_last_published,acc_last_published_stderr,acc_first,acc_first_sd,acc_first_published,acc_first_published_stderr,delta,delta_sd,delta_published,delta_published_stderr
s_minus,resnet,paper,independent,false,0 1,,true,"NVIDIA H200, 16 x86_64 cores","espalier 0.1.0, torch 2.11.0",task,0.75,0,0.4375,0.0883883,0.36,,0.75,0,0.72,,-0.3125,0.0883883,-0.35,
s_minus,resnet,paper,mntdp-d,false,0 1,,true,"NVIDIA H200, 16 x86_64 cores","espalier 0.1.0, torch 2.11.0",task,0.75,0,0.75,0,0.72,,0.75,0,0.72,,0,0,0.00,
s_minus,resnet,paper,ewc,false,0,strength 100,false,"NVIDIA H200, 16 x86_64 cores","espalier 0.1.0, torch 2.11.0",stream,0.25,,0.5,,0.71,,0.75,,0.72,,-0.25,,-0.01,
"""


def test_text(few: Path) -> None:
    assert fmt.text(made(few)) == TEXT


@pytest.mark.parametrize("width", [1, 80])
def test_narrow_text_breaks_no_number_and_leaves_nothing_out(few: Path, width: int) -> None:
    found = made(few, all_published=True)
    narrow, wide = fmt.text(found, width), fmt.text(found)
    assert "…" not in narrow
    assert sorted(narrow.split()) == sorted(wide.split())
    assert max(map(len, narrow.splitlines()[:4])) < 100


def test_markdown(few: Path) -> None:
    assert fmt.markdown(made(few)[1:]) == MARKDOWN


def test_latex(few: Path) -> None:
    assert fmt.latex(made(few)[1:]) == LATEX


def test_latex_escapes_what_data_may_hold(tmp_path: Path) -> None:
    write_run(tmp_path, "50%_{a}&b\\", stream="s#1")
    shown = fmt.latex(made(tmp_path)[:1])
    assert r"50\%\_\{a\}\&b\textbackslash{} & 1 & " in shown
    assert r"\caption{s\#1, resnet, protocol paper}" in shown


def test_csv(few: Path) -> None:
    assert fmt.as_csv(made(few)[1:]) == CSV


def test_csv_is_one_table_of_everything(tmp_path: Path) -> None:
    five(tmp_path, "mntdp-d", 0)
    rows = list(csv.DictReader(io.StringIO(fmt.as_csv(made(tmp_path)))))
    assert [row["stream"] for row in rows] == [*FIVE, MEAN]
    assert (rows[1]["avg_accuracy"], rows[1]["avg_accuracy_published"], rows[1]["acc_last"]) == (
        "0.25",
        "0.61",
        "0.125",
    )
    assert (rows[5]["avg_accuracy"], rows[5]["transfer_s_plus_published"], rows[5]["acc_last"]) == ("0.5", "0.0", "")


def test_small_amounts_keep_three_digits(tmp_path: Path) -> None:
    write_run(tmp_path, tflops=0.05546, memory_mb=102.04, forgetting=-0.0001)
    shown = fmt.text(tables(gather([tmp_path], read_recorded)[0], {}))
    assert {"0.0555", "102", "+0.000"} <= set(shown.split())
