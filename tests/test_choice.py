"""Which of the trained is the best, and how candidates are told."""

from espalier.nets import backbone
from espalier.training import Fresh, Member, Setting, Trained, best, describe
from espalier.training.candidate import modules_named
from tests.nets_help import RATES, candidate

TINY = backbone("tiny", (3, 8, 8), 3)


def result(code: str, accuracy: float, setting: Setting = RATES[0]) -> Trained:
    return Trained(Member(candidate(code, TINY), setting), accuracy, 0, 0, 0, (), ())


def test_the_best_has_the_highest_accuracy_then_more_reuse_then_comes_first() -> None:
    assert best([result("aaaaa", 0.5), result(".....", 0.6)]).val_accuracy == 0.6
    tied = [result(".....", 0.6), result("aaa..", 0.6), result("aaaa.", 0.6, RATES[1]), result("aaAAA", 0.6)]
    assert best(tied) is tied[2]
    settings_tied = [result("aaaa.", 0.6, RATES[0]), result("aaaa.", 0.6, RATES[1]), result(".aaaa", 0.6)]
    assert best(settings_tied) is settings_tied[0]
    assert best(settings_tied[::-1]) is settings_tied[2]


def test_candidates_say_what_they_are() -> None:
    one, two = candidate("aaB..", TINY), candidate("Abbb.", TINY)
    assert describe(one) == "rrcff"
    assert modules_named([one, two]) == {
        "a.stem", "a.stage1", "b.stage2", "b.stage1", "b.stage3",
    }  # fmt: skip
    assert modules_named([(Fresh(), Fresh())]) == set()
