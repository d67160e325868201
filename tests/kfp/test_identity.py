"""Which step is which: told from where its outputs go."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from allaboard.errors import BadInput, SiteError
from allaboard_kfp.identity import DOWNWARD, check_place, key_of

RUN = "0c1d2e3f-1111-2222-3333-444455556666"
TASK = "ffff2e3f-1111-2222-3333-444455556666"
LOCAL = "/home/ann/out/retrain-2026-11-21-13-04-37-123456"


@pytest.mark.parametrize(
    ("output", "run", "task"),
    [
        (f"s3://b/v2/artifacts/retrain/{RUN}/train/{TASK}/report", RUN, f"train/{TASK}"),
        (f"minio://mlpipeline/v2/artifacts/retrain/{RUN}/train/report", RUN, "train"),
        (f"{LOCAL}/train/report", LOCAL, "train"),
        (f"{LOCAL}/for-loop-2-iteration-0/train/report", LOCAL, "for-loop-2-iteration-0/train"),
        ("/tmp/x/report", "", "/tmp/x"),
    ],
    ids=["cluster", "older cluster", "kfp.local", "a loop of kfp.local", "a plain call"],
)
def test_the_key_is_the_pipeline_run_and_the_task(output: str, run: str, task: str) -> None:
    assert json.loads(key_of(output)) == ["kfp", run, task]


def test_every_try_of_a_step_and_every_output_of_it_have_the_same_key() -> None:
    assert key_of(f"{LOCAL}/train/report") == key_of(f"{LOCAL}/train/model")
    assert key_of(f"{LOCAL}/train/report") != key_of(f"{LOCAL}/train-2/report")
    assert key_of(f"{LOCAL}/train/report") != key_of(f"/other{LOCAL}/train/report")


PLACE = f"s3://b/v2/artifacts/retrain/{RUN}/train/{TASK}/report"


def pod(node: str) -> dict[str, str]:
    return {"KFP_POD_NAME": "p", "KFP_RUN_ID": RUN, "ARGO_NODE_NAME": node}


@pytest.mark.parametrize(
    "node",
    [
        "retrain-x7k.root.train.executor",
        "retrain-x7k.root.train.executor(0)",
        "retrain-x7k(0).root(0).train(0).executor(0)",
        "retrain-x7k(0).root(0).train(0).executor(2)",
        "retrain-x7k(0).root(0).train(1).executor(0)",
        "retrain-x7k(1).root(2).train(10).executor(1)",
    ],
)
def test_a_pod_that_is_told_who_it_is_has_the_key_of_its_node_in_every_try(node: str) -> None:
    """Argo tries again at every level: the step, and once it is out of tries, what holds it."""
    assert json.loads(key_of(PLACE, pod(node))) == ["kfp", RUN, "retrain-x7k.root.train.executor"]
    assert key_of(PLACE.replace(TASK, RUN), pod(node)) == key_of(PLACE, pod(node))


def test_each_iteration_of_a_loop_has_a_key_of_its_own() -> None:
    """Also of a loop in a loop, and in every try."""
    loop = "for-loop-1(0).iteration-iterations({n}:{n})(TRY).iteration-item(0)."
    names = [f"p(0).root(TRY).{loop}train(0).executor(TRY)".replace("{n}", str(n)) for n in range(12)]
    names += [name.replace("train", loop.replace("{n}", "0") + "train") for name in names]
    first, second = ([key_of(PLACE, pod(n.replace("TRY", again))) for n in names] for again in ("0", "2"))
    assert first == second and len({*first, key_of(PLACE, pod("p(0).root(0).train(0).executor(0)"))}) == 25


def test_half_of_an_identity_is_not_enough() -> None:
    told = pod("retrain-x7k.root.train.executor(0)")
    assert key_of(PLACE, {**told, "ARGO_NODE_NAME": ""}) == key_of(PLACE)
    assert key_of(PLACE, {n: v for n, v in told.items() if n != "KFP_POD_NAME"}) == key_of(PLACE)


def test_a_task_of_a_pipeline_asks_for_it_by_the_downward_api(tmp_path: Path) -> None:
    import yaml
    from kfp import compiler, dsl

    from allaboard_kfp import identified, train

    @dsl.pipeline(name="p")
    def pipeline():  # type: ignore[no-untyped-def]  # kfp reads annotations, and none says: no output
        identified(train(job={"name": "a"}))

    compiler.Compiler().compile(pipeline, str(tmp_path / "p.yaml"))
    platform = list(yaml.safe_load_all((tmp_path / "p.yaml").read_text()))[1]
    (executor,) = platform["platforms"]["kubernetes"]["deploymentSpec"]["executors"].values()
    assert executor["fieldPathAsEnv"] == [{"name": n, "fieldPath": p} for n, p in DOWNWARD.items()]


def test_without_kfp_kubernetes_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    import kfp

    from allaboard_kfp import identified

    monkeypatch.delattr(kfp, "kubernetes", raising=False)
    monkeypatch.setitem(sys.modules, "kfp.kubernetes", None)
    with pytest.raises(SiteError, match=r"pip install 'kfp-allaboard\[kubernetes\]'") as raised:
        identified(None)
    assert "\n" not in str(raised.value)


def test_a_garbled_pipeline_root_is_refused() -> None:
    python = "/opt/venv/bin/python"
    garbled = "/home/python3/out/x/report".replace("python3", python)
    with pytest.raises(BadInput, match=r"'python3' in its path \(/home/python3/out/x/report\)"):
        check_place(garbled, {}, python)
    check_place("/home/ann/out/x/report", {}, python)
    check_place(garbled, {"KFP_POD_NAME": "a-pod"}, python)
    check_place(f"{Path.cwd()}/report", {})
