"""The helper in a pod template: how it is mounted and started, and where it cannot be. Values in, values
out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from allaboard.errors import Problem
from allaboard.job import helper
from allaboard.runs.resume_template import TEMPLATE, has_template
from allaboard.text.units import counted
from allaboard.text.untrusted import show

if TYPE_CHECKING:
    from allaboard.runs.layout import Group, Layout

SWITCH = "ALLABOARD_STARTUP"
_SHELL_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_LOST = (
    "stacks of a hang are told by images with allaboard alone, and nothing answers Kubeflow's progress "
    "protocol"
)
_NOT_ADOPTED = "checkpoints of other libraries are adopted by `allaboard checkpoints adopt` alone"
_BY_SSHD = (
    "sshd starts the ranks, without the variables of the launcher; nothing answers Kubeflow's progress "
    "protocol there, and stacks of a hang are told by images with allaboard, where mpirun says "
    "-x ALLABOARD_RUN"
)
_NO_FOLDER = (
    f"is no folder, and {TEMPLATE!r} is the path of a folder or a file; say folder, too, the place where "
    "the script saves, or give a folder below a mount of storage"
)
_ELASTIC = (
    f"{TEMPLATE!r} cannot be filled in for an elastic gang, whose launchers start processes again by the "
    "words of their own start; take it out, and let the script look in $(ALLABOARD_CHECKPOINTS)"
)
_NO_HELPER = (
    f"{TEMPLATE!r} is filled in by the helper of members, which cannot stand before this command, or is off; "
    "say command, without inject: off, or take the word out"
)
_ELASTIC_COPIES = (
    "is copied by rank 0's member, which an elastic gang changes while it trains; mount a volume, and give a "
    "folder in it as checkpoints.uri with format: auto"
)
_MPI_COPIES = (
    "is written by ranks that sshd starts in the workers, where nothing looks at it; give a folder below a "
    "mount of storage that all members see"
)
_NO_COPIES = (
    "is copied by the helper of members, which cannot stand before this command, or is off; say command, "
    "without inject: off, or mount a volume, and give a folder in it as checkpoints.uri with format: auto"
)
_RELATIVE = (
    "begins where members start, which is the folder of their code; give an absolute one that they can write "
    "to, as below a mount of storage: [{mount: /out, empty_dir: disk}]"
)
_NO_CREDENTIALS = (
    "is a bucket, and the job names no credentials for it; give them by secrets, environment or "
    "service_account, unless the nodes or the default service account let every pod in"
)
_OF_CREDENTIALS = frozenset(
    {
        "AWS_ACCESS_KEY_ID", "AWS_PROFILE", "AWS_SHARED_CREDENTIALS_FILE", "AWS_ROLE_ARN",
        "AWS_CONTAINER_CREDENTIALS_FULL_URI", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    }
)  # fmt: skip
_OF_NODE = (
    "in the network of the node the loopback is the node's, so that nothing answers Kubeflow's progress "
    "protocol"
)


def volume(name: str, files: Mapping[str, str], *, optional: bool) -> dict[str, Any]:
    """The volume. ``name``: of the ConfigMap; ``files``: its key -> path; ``optional``: a pod starts without
    it, too.
    """
    items = [{"key": key, "path": path} for key, path in files.items()]
    source = {"name": name, "items": items, **({"optional": True} if optional else {})}
    return {"name": helper.VOLUME, "configMap": source}


def keeps_checkpoints(layout: Layout) -> bool:
    """True if the helper knows the checkpoints of other libraries: those that lie in a folder."""
    saving = layout.saving
    return saving is not None and saving.is_of_others and "://" not in saving.saved_into


def copies_checkpoints(layout: Layout) -> bool:
    """True if the helper copies what it knows to the uri."""
    return layout.saving is not None and layout.saving.folder is not None


def variables(layout: Layout, group: Group, *, is_shared: bool) -> dict[str, str]:
    """Variables that tell the helper of a member what to do. ``is_shared``: all members see the folder of the
    checkpoints.
    """
    if not keeps_checkpoints(layout):
        return {}
    settings = {helper.CHECKPOINTS: helper.FILL if _is_filled(group) else helper.ADOPT}
    if layout.saving is not None and copies_checkpoints(layout):
        settings[helper.COPIES] = layout.saving.uri
        settings |= {helper.SHARED: "on"} if is_shared else {}
    return settings


def _is_filled(group: Group) -> bool:
    return has_template((*group.command, *group.args), group.environment)


def template_problems(layout: Layout, templates: Mapping[str, Mapping[str, Any]]) -> Iterator[Problem]:
    """Reasons for which ``{checkpoint}`` cannot be filled in. ``templates``: role -> pod template."""
    saving, filled = layout.saving, [group for group in layout.groups if _is_filled(group)]
    if saving is None or not saving.is_of_others or not filled:
        return
    if not keeps_checkpoints(layout):
        yield Problem("checkpoints.uri", f"{show(saving.uri)} {_NO_FOLDER}")
    elif layout.elastic is not None:
        yield Problem("command", _ELASTIC)
    elif any(not _can_fill(layout, group, templates[group.role]) for group in filled):
        yield Problem("command", _NO_HELPER)


def copy_problems(
    layout: Layout,
    templates: Mapping[str, Mapping[str, Any]],
    trains: str,
    *,
    is_shared: bool,
    code_folder: str,
) -> Iterator[Problem]:
    """Reasons for which the checkpoints of ``checkpoints.folder`` cannot be copied. ``templates``: role ->
    pod template; ``trains``: the container that trains; ``is_shared``: as of `variables`; ``code_folder``:
    that of shipped files, which cannot be written to.
    """
    saving = layout.saving
    if saving is None or saving.folder is None:
        return
    at = "checkpoints.folder"
    starts_elsewhere = layout.setup or any(
        _main(template, trains).get("workingDir") == code_folder for template in templates.values()
    )
    if layout.elastic is not None:
        yield Problem(at, _ELASTIC_COPIES)
    elif layout.framework == "mpi" and not is_shared:
        yield Problem(at, _MPI_COPIES)
    elif any(not _can_fill(layout, group, templates[group.role]) for group in layout.groups):
        yield Problem(at, _NO_COPIES)
    if starts_elsewhere and not saving.folder.startswith("/"):
        yield Problem(at, _RELATIVE)
    if saving.uri.startswith("s3:") and not all(
        _has_credentials(template, trains) for template in templates.values()
    ):
        yield Problem(at, f"{show(saving.uri)} {_NO_CREDENTIALS}", severity="warning")


def _has_credentials(template: Mapping[str, Any], trains: str) -> bool:
    """True if something of a pod may let it into a bucket."""
    main = _main(template, trains)
    named = {str(name) for name in _values(main.get("env"), "name")}
    return bool(main.get("envFrom") or template["spec"].get("serviceAccountName") or named & _OF_CREDENTIALS)


def _can_fill(layout: Layout, group: Group, template: Mapping[str, Any]) -> bool:
    if layout.framework == "mpi" and not group.command:
        return True  # mpirun on the launcher starts the ranks, by words that are filled in there
    return is_helped(template) and group.environment.get(SWITCH) != "off"


def with_helper(
    template: dict[str, Any], trains: str, source: Mapping[str, Any], settings: Mapping[str, str]
) -> dict[str, Any]:
    """The template with the helper around the command of the container that trains, whoever gave it; the
    template itself where there is none. ``source``: the volume; ``settings``: `variables`.
    """
    spec, main = template["spec"], _main(template, trains)
    mounts, volumes = main.get("volumeMounts") or [], spec.get("volumes") or []
    if (
        why_not(main)
        or helper.FOLDER in _values(mounts, "mountPath")
        or helper.VOLUME in _values(volumes, "name")
    ):
        return template
    mount = {"name": helper.VOLUME, "mountPath": helper.FOLDER, "readOnly": True}
    command = main["command"]
    changed = {**main, "command": [*helper.start_words(command), *command], "volumeMounts": [*mounts, mount]}
    settings = {**settings, **({helper.ENDPOINT: "off"} if spec.get("hostNetwork") else {})}
    if settings:
        added = [{"name": name, "value": value} for name, value in settings.items()]
        changed["env"] = [*(main.get("env") or ()), *added]
    containers = [changed if container is main else container for container in spec["containers"]]
    return {**template, "spec": {**spec, "containers": containers, "volumes": [*volumes, dict(source)]}}


def is_helped(template: Mapping[str, Any]) -> bool:
    """True if the helper is in this template."""
    return helper.VOLUME in _values(template["spec"].get("volumes"), "name")


def why_not(container: Mapping[str, Any]) -> str | None:
    """Reason for which no helper stands around the command of a container; None: one can."""
    command = container.get("command") or ()
    if not command:
        return "no command is given, and only the image knows what its entrypoint starts; say command"
    prefix = helper.start_words(command)
    if not prefix:
        return f"{command[0]} is started by the operator's rules"
    names = [str(name) for name in _values(container.get("env"), "name")]
    odd = [name for name in names if not _SHELL_NAME.fullmatch(name)]
    if odd and prefix[1] == "-c" and prefix[0] != command[0]:
        return f"a shell, which would start it, drops the {counted(len(odd), 'variable')} {', '.join(odd)}"
    return None


def gaps(layout: Layout, templates: Mapping[str, Mapping[str, Any]], trains: str) -> tuple[str, ...]:
    """Sentences about parts of the helper that members lack, and the reason. ``templates``: role -> pod
    template.
    """
    roles: dict[str, list[str]] = {}
    for role, template in templates.items():
        if (gap := _gap(layout, role, template, trains)) is not None:
            roles.setdefault(gap, []).append(role)
    return tuple(f"{', '.join(same)}: {gap}" for gap, same in roles.items())


def _gap(layout: Layout, role: str, template: Mapping[str, Any], trains: str) -> str | None:
    main = _main(template, trains)
    if layout.framework == "mpi" and role == "worker" and not main.get("command"):
        return _BY_SSHD
    if not is_helped(template):
        adopted = f"; {_NOT_ADOPTED}" if keeps_checkpoints(layout) else ""
        return f"{why_not(main) or 'something else is mounted in its place'}; {_LOST}{adopted}"
    return _OF_NODE if template["spec"].get("hostNetwork") else None


def _main(template: Mapping[str, Any], trains: str) -> Mapping[str, Any]:
    containers = template["spec"]["containers"]
    return next((container for container in containers if container.get("name") == trains), {})


def _values(items: Any, name: str) -> list[Any]:
    return [item.get(name) for item in items or () if isinstance(item, Mapping)]
