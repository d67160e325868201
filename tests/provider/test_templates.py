"""Templates in a job, and in other values that have structure: whatever a template puts in, the structure is
the author's.
"""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException
from airflow.sdk import DAG, BaseOperator

from allaboard.backends.local.backend import LocalBackend
from allaboard.errors import BadInput
from allaboard_provider.operators import (
    CollectCheckpointOperator,
    EvaluateOperator,
    PromoteOperator,
    TrainingJobOperator,
)
from allaboard_provider.templates import LeafByLeaf
from tests.provider.building import a_context

HOSTILE = [
    'a", "command": ["sh", "-c", "touch /tmp/owned"], "x": "',
    "a', 'command': ['sh', '-c', 'evil'], 'x': '",
    "a\ncommand: [sh, -c, evil]\n",
    "{'replicas': 1, 'command': ['sh', '-c', 'evil']}",
    '{"name": "b", "command": ["sh"]}',
    "['sh', '-c', 'evil']",
    "{{ 7 * 7 }}",
    '"""',
    "\\",
]
WORDS = {
    "JSON": '{"name": "a", "command": ["python", "train.py", "{{ conf.x }}"]}',
    "Python": "{'name': 'a', 'command': ['python', 'train.py', '{{ conf.x }}']}",
    "YAML": "name: a\ncommand:\n- python\n- train.py\n- '{{ conf.x }}'\n",
}


def a_task(job: Any, *, native: bool = False, folder: Path | None = None) -> TrainingJobOperator:
    with DAG("templates", render_template_as_native_obj=native) as dag:
        task = TrainingJobOperator(task_id="train", job=job, allaboard_conn_id=None)
    if folder is not None:
        dag.fileloc = str(folder / "dag.py")
    return task


def rendered(job: Any, conf: dict[str, Any], *, native: bool = False, folder: Path | None = None) -> Any:
    task = a_task(job, native=native, folder=folder)
    task.render_template_fields({"conf": conf})
    return task


@pytest.mark.parametrize("native", [False, True], ids=["text", "native"])
@pytest.mark.parametrize("x", HOSTILE)
@pytest.mark.parametrize("words", WORDS.values(), ids=WORDS)
def test_a_value_put_into_a_text_stays_one_word_of_the_command(words: str, x: str, native: bool) -> None:
    task = rendered(words, {"x": x}, native=native)
    assert task.job == {"name": "a", "command": ["python", "train.py", x]}
    assert task.training_job().get("command") == ["python", "train.py", x]


@pytest.mark.parametrize("native", [False, True], ids=["text", "native"])
@pytest.mark.parametrize("x", HOSTILE)
def test_a_text_put_into_a_group_becomes_no_members_with_a_command(x: str, native: bool) -> None:
    job = {"name": "a", "command": ["b"], "groups": {"master": "{{ conf.x }}"}}
    task = rendered(job, {"x": x}, native=native)
    assert task.job["groups"] == {"master": x}
    with pytest.raises(BadInput, match=r"groups\.master"):
        task.training_job()


@pytest.mark.parametrize("ending", ["yaml", "yml", "json"])
def test_a_job_file_is_rendered_text_by_text_and_shown_whole(tmp_path: Path, ending: str) -> None:
    (tmp_path / "jobs").mkdir()
    fields = {"name": "a", "command": ["python", "{{ conf.x }}"], "workers": "{{ conf.n }}"}
    (tmp_path / "jobs" / f"night.{ending}").write_text(json.dumps(fields))
    for path in (f"jobs/night.{ending}", f"jobs/{{{{ conf.which }}}}.{ending}", "{{ conf.path }}"):
        conf = {"x": HOSTILE[0], "n": 3, "which": "night", "path": f"jobs/night.{ending}"}
        task = rendered(path, conf, folder=tmp_path)
        assert task.job == {"name": "a", "command": ["python", HOSTILE[0]], "workers": "3"}
        read = task.training_job()
        assert read.get("workers") == 3 and read.folder == str(tmp_path / "jobs")


@pytest.mark.parametrize("which", ['{"name": "b", "command": ["sh"]}\n#', "name: b\ncommand: [sh]\n#"])
def test_the_name_of_a_file_is_never_read_as_a_job(tmp_path: Path, which: str) -> None:
    task = rendered("{{ conf.which }}.yaml", {"which": which}, folder=tmp_path)
    with pytest.raises(BadInput, match=r"no such file|cannot be read"):
        task.training_job()


def test_one_expression_gives_a_whole_job_which_is_not_rendered_again() -> None:
    job = {"name": "a", "command": ["echo", "{{ conf.secret }}"], "workers": 2, "elastic": None}
    for given in (job, json.dumps(job), str(job)):
        for native in (False, True):
            task = rendered("{{ conf.job }}", {"job": given, "secret": "told"}, native=native)
            assert task.training_job().as_mapping() == {"name": "a", "command": job["command"], "workers": 2}


def test_native_objects_are_what_one_expression_gives() -> None:
    job = {"name": "a", "command": "{{ conf.words }}", "workers": "{{ conf.n }}"}
    task = rendered(job, {"words": ["python", "x.py"], "n": 2}, native=True)
    assert task.job == {"name": "a", "command": ["python", "x.py"], "workers": 2}
    assert rendered({"name": "a{{ conf.n }}"}, {"n": 2}, native=True).job == {"name": "a2"}


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "a", "command": ["b"], "workers": {{ conf.n }}}',
        '{"name": "a", {% if conf.n %}"workers": 2,{% endif %} "command": ["b"]}',
        "name: a\ncommand: [b]\nworkers: {{ conf.n }}\n",
        '{"name": "a", "name": "{{ conf.n }}", "command": ["b"]}',
        "{'name': 'a', 'name': '{{ conf.n }}', 'command': ['b']}",
    ],
)
def test_a_template_that_would_be_structure_is_refused_and_starts_nothing(text: str) -> None:
    task = rendered(text, {"n": 2})
    with pytest.raises(AirflowFailException, match=r"is not a mapping .* within quotes"):
        task.execute(a_context())
    assert LocalBackend().list() == []


def test_what_a_mapped_task_has_from_an_xcom_is_no_template() -> None:
    job = {"name": "a", "command": ["echo", "{{ conf.secret }}"]}
    task = a_task(job)
    task._do_render_template_fields(
        task, task.template_fields, {"conf": {"secret": "told"}}, task.get_template_env(), {id(job)}
    )
    assert task.job == job


def test_results_of_other_tasks_given_as_text_are_parsed_before_they_are_rendered() -> None:
    x = '1", "uri": "store://elsewhere", "y": "'
    common = {"task_id": "t", "allaboard_conn_id": None}
    into = {"uri": "store://here", "run": "{{ conf.x }}"}
    tasks: list[tuple[Any, str]] = [
        (CollectCheckpointOperator(source=json.dumps(into), into="store://b", **common), "source"),
        (PromoteOperator(checkpoint=json.dumps(into), store="store://b", **common), "checkpoint"),
        (PromoteOperator(checkpoint="c", metrics=json.dumps(into), store="store://b", **common), "metrics"),
        (EvaluateOperator(job={}, checkpoint=json.dumps(into), **common), "checkpoint"),
    ]
    context: Any = {"conf": {"x": x}, "dag": type("D", (), {"dag_id": "d"}), "run_id": "r"}
    for task, name in tasks:
        task.render_template_fields(context)
        assert getattr(task, name) == {"uri": "store://here", "run": x}


def test_the_private_hook_of_airflow_that_ours_replaces_has_the_same_parameters() -> None:
    """Airflow renders by `_do_render_template_fields`, and offers no public way to render a field leaf by
    leaf.
    """
    hook = "_do_render_template_fields"
    theirs = getattr(BaseOperator, hook, None)
    assert theirs is not None, f"this Airflow has no {hook}: its operators render in another way"
    names = [*inspect.signature(theirs).parameters]
    for kind in (LeafByLeaf, TrainingJobOperator):
        ours = [*inspect.signature(getattr(kind, hook)).parameters]
        assert ours == names, f"this Airflow calls {hook}({', '.join(names)}), not ({', '.join(ours)})"
