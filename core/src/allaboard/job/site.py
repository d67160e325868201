"""The place where a job runs: its store, its mounts, and whether a gang too large is shrunk.

What an Airflow connection, the command line and the environment can say about a place, in one value. The job
itself names no place: ``store://name`` hangs off the site's store, and a path below a mount (``/data/x``) is
mapped to the site's folder. So the same job runs here and on a cluster.
"""

# ruff: noqa: PTH100, PTH110, PTH111, PTH117, PTH118  (places are text: pathlib would turn s3://x into s3:/x)

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from allaboard.errors import BadInput, Problem, SiteError
from allaboard.job.training_job import PACKED, TrainingJob, is_shared
from allaboard.text.names import nearest, one_of
from allaboard.text.untrusted import show

STORE = "store://"
BACKENDS = ("local", "kubernetes")


@dataclass(frozen=True, slots=True)
class Site:
    """``store``: uri below which every path of a chain hangs; ``mounts``: mount path -> folder here; ``fit``:
    shrink or strict, for jobs that do not say; ``base``: where relative folders of mounts start.
    """

    store: str
    mounts: Mapping[str, str] = field(default_factory=dict)
    fit: str = "shrink"
    base: str = "."


SERVICE_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
"""Folder in which a pod finds its namespace and its token."""


def in_pod(environ: Mapping[str, str]) -> bool:
    """True if this process runs in a pod: by variables that Kubernetes and KFP set in each container, or else
    by the service account's files.
    """
    import os.path

    marker = environ.get("KUBERNETES_SERVICE_HOST") or environ.get("KFP_POD_NAME")
    return bool(marker) or os.path.exists(f"{SERVICE_ACCOUNT}/namespace")


def check_backend(name: str) -> None:
    """Raises BadInput for a name of no backend."""
    if name not in BACKENDS:
        near = nearest(name, BACKENDS)
        hint = f"did you mean {near!r}?" if near else f"known: {one_of(BACKENDS)}"
        raise BadInput(f"backend {show(name)} is not known; {hint}")


def home(environ: Mapping[str, str]) -> str:
    """``ALLABOARD_HOME``, or ``~/.allaboard``: runs, secrets and the default store of this user. Raises
    SiteError for a user without a home, as containers have.
    """
    import os.path

    folder = os.path.expanduser(environ.get("ALLABOARD_HOME") or "~/.allaboard")
    if folder.startswith("~"):
        raise SiteError(f"{folder}: this user has no home folder here; set ALLABOARD_HOME to a folder")
    return os.path.abspath(folder)


def site_of(
    environ: Mapping[str, str],
    *,
    store: str | None = None,
    mounts: Mapping[str, str] | None = None,
    fit: str | None = None,
    base: str = ".",
) -> Site:
    """The site with these settings; missing ones come from ``ALLABOARD_STORE``, ``ALLABOARD_MOUNTS``
    (``/data=./data,/models=...``) and ``ALLABOARD_FIT``. Raises BadInput.

    The default of ``fit`` is strict in a pod: a shrunk training would use less than requested without a
    visible sign.
    """
    fit = fit or environ.get("ALLABOARD_FIT") or ("strict" if in_pod(environ) else "shrink")
    if fit not in ("shrink", "strict"):
        raise BadInput(f"fit {show(fit)} is not known; known: shrink, strict")
    written = mounts if mounts is not None else parse_mounts(environ.get("ALLABOARD_MOUNTS", "").split(","))
    return Site(
        store=(store or environ.get("ALLABOARD_STORE") or f"{home(environ)}/store").rstrip("/"),
        mounts=written,
        fit=fit,
        base=base,
    )


def parse_mounts(items: Any) -> dict[str, str]:
    """``["/data=./data"]`` -> ``{"/data": "./data"}``. Raises BadInput."""
    mounts = {}
    for item in items:
        if not item.strip():
            continue
        mount, sign, folder = item.partition("=")
        if not sign or not mount.startswith("/") or not folder:
            raise BadInput(f"mount {show(item)} is not understood; write /data=./data")
        mounts[mount.rstrip("/") or "/"] = folder
    return mounts


def resolve_uri(uri: str, site: Site, folder: str | None = None) -> str:
    """``store://a`` -> below the site's store; a mounted path -> the site's folder; a relative path -> below
    ``folder``.
    """
    import os.path

    if uri.startswith(STORE):
        return f"{_absolute_path(site.store, site.base)}/{uri[len(STORE) :].strip('/')}".rstrip("/")
    if "://" in uri:
        return uri
    mapped = _through_mounts(uri, site)
    if mapped != uri or os.path.isabs(uri) or uri.startswith("~"):
        return _expand_home(mapped)
    return os.path.abspath(os.path.join(folder or ".", uri))


def is_packed(job: TrainingJob) -> bool:
    """True for a job whose code is a folder in the store."""
    code = job.get("code")
    return isinstance(code, Mapping) and "folder" in code


def place_job(job: TrainingJob, site: Site) -> TrainingJob:
    """The job with every path resolved for this site, whose mounts name the folders of those volumes, too,
    that the site makes itself. Raises BadInput for a volume that nothing is mapped to.
    """
    problems = [
        Problem(
            f"storage[{n}].mount",
            f"{volume['mount']} has no folder here; write mounts: {{{volume['mount']}: ./folder}} "
            f"in the connection, or --mount {volume['mount']}=./folder",
        )
        for n, volume in enumerate(job.get("storage", ()))
        if volume["mount"].rstrip("/") not in site.mounts
    ]
    if problems:
        raise BadInput(f"job {job.name!r} needs storage that is not here:", problems)

    def uri(text: str) -> str:
        return resolve_uri(text, site, job.folder)

    changes: dict[str, Any] = {}
    if saving := job.get("checkpoints"):
        start = saving.get("start_from", "none")
        moved = start if start in ("none", "champion") else uri(start)
        hot = saving.get("hot")
        changes["checkpoints"] = {
            **saving,
            "uri": uri(saving["uri"]),
            **({"folder": uri(saving["folder"])} if "folder" in saving else {}),
            **({"hot": {**hot, "folder": uri(hot["folder"])}} if hot else {}),
            **({"start_from": moved} if start != "none" else {}),
        }
    if "shards" in (job.get("data") or {}):
        changes["data"] = {**job.get("data"), "shards": uri(job.get("data")["shards"])}
    if "from" in (job.get("metrics") or {}):
        written = job.get("metrics")["from"]
        # Members whose code is fetched start in a folder that is made for each of them.
        stays = isinstance(job.get("code"), Mapping) and is_relative(written)
        changes["metrics"] = {"from": written if stays else uri(written)}
    if is_packed(job):
        changes["code"] = {**job.get("code"), "store": uri(job.get("code").get("store", PACKED))}
    for name in ("command", "args"):
        if job.get(name):
            changes[name] = [place_word(word, site) for word in job.get(name)]
    if job.get("environment"):
        changes["environment"] = {k: place_word(v, site) for k, v in job.get("environment").items()}
    if groups := job.get("groups"):
        changes["groups"] = {role: _place_group(spec, site) for role, spec in groups.items()}
    return job.with_(**changes)


def is_relative(place: str) -> bool:
    """True for a path below the folder in which members start."""
    return "://" not in place and not place.startswith(("/", "~", "file:"))


def place_on_cluster(job: TrainingJob, site: Site) -> TrainingJob:
    """The job with every ``store://`` resolved as its members on a cluster will find it: in a bucket, or
    below a volume that they all mount. Raises BadInput, naming each place, for a store that they cannot
    see. Paths stay as they are: they are paths in the members.
    """
    store = site.store.rstrip("/")
    seen = "://" in store or is_shared(job, store)
    problems: list[Problem] = []

    def uri(text: str, path: str) -> str:
        if not text.startswith(STORE):
            return text
        if not seen:
            problems.append(
                Problem(
                    path,
                    f"{text} is in {store}, a folder of this machine that no member on a cluster can see; "
                    "give --store s3://bucket/prefix (ALLABOARD_STORE, or the connection's store), or "
                    "a folder below a mount of the job's storage that is a pvc or a claim",
                )
            )
        return f"{store}/{text[len(STORE) :].strip('/')}".rstrip("/")

    def word(text: str, path: str) -> str:
        option, sign, value = text.partition("=") if text.startswith("-") and "=" in text else ("", "", text)
        return option + sign + uri(value, path)

    def places(spec: Mapping[str, Any], path: str) -> dict[str, Any]:
        moved: dict[str, Any] = {}
        for name in ("command", "args"):
            if name in spec:
                moved[name] = [word(w, f"{path}{name}[{n}]") for n, w in enumerate(spec[name])]
        if "environment" in spec:
            moved["environment"] = {
                k: word(v, f"{path}environment.{k}") for k, v in spec["environment"].items()
            }
        return moved

    changes = places(job.as_mapping(), "")
    if saving := job.get("checkpoints"):
        changes["checkpoints"] = {
            **saving,
            **{n: uri(saving[n], f"checkpoints.{n}") for n in ("uri", "start_from") if n in saving},
        }
    if "shards" in (job.get("data") or {}):
        changes["data"] = {**job.get("data"), "shards": uri(job.get("data")["shards"], "data.shards")}
    if "from" in (job.get("metrics") or {}):
        changes["metrics"] = {"from": uri(job.get("metrics")["from"], "metrics.from")}
    if is_packed(job):
        changes["code"] = {
            **job.get("code"),
            "store": uri(job.get("code").get("store", PACKED), "code.store"),
        }
    if groups := job.get("groups"):
        changes["groups"] = {
            role: {**spec, **places(spec, f"groups.{role}.")} if isinstance(spec, Mapping) else spec
            for role, spec in groups.items()
        }
    if problems:
        raise BadInput(f"job {job.name!r} uses paths that its members cannot see:", problems)
    return job.with_(**changes)


def _place_group(spec: Any, site: Site) -> Any:
    if not isinstance(spec, Mapping):
        return spec
    moved = dict(spec)
    for name in ("command", "args"):
        if name in spec:
            moved[name] = [place_word(word, site) for word in spec[name]]
    if "environment" in spec:
        moved["environment"] = {k: place_word(v, site) for k, v in spec["environment"].items()}
    return moved


def place_word(word: str, site: Site) -> str:
    """An argument or a variable: ``store://`` and mounted paths are resolved, also behind ``--option=``."""
    option, sign, value = word.partition("=") if word.startswith("-") and "=" in word else ("", "", word)
    if value.startswith(STORE):
        value = resolve_uri(value, site)
    return option + sign + _through_mounts(value, site)


def _through_mounts(path: str, site: Site) -> str:
    for mount in sorted(site.mounts, key=len, reverse=True):
        if path == mount or path.startswith(mount.rstrip("/") + "/"):
            return _absolute_path(site.mounts[mount], site.base) + path[len(mount.rstrip("/")) :]
    return path


def _absolute_path(folder: str, base: str) -> str:
    import os.path

    if "://" in folder:
        return folder.rstrip("/")
    return os.path.abspath(os.path.join(base, _expand_home(folder)))


def _expand_home(path: str) -> str:
    """With ``~`` and ``~user`` resolved: one that is not would become a folder of that name."""
    import os.path

    expanded = os.path.expanduser(path)
    if expanded.startswith("~"):
        user = expanded.partition("/")[0]
        raise BadInput(
            f"{show(path)}: there is no home folder of {show(user, quote=False)} here; write the whole path"
        )
    return expanded
