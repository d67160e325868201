"""The metadata of this provider for Airflow (entry point ``apache_airflow_provider``). Plain data: it imports
nothing of ours.
"""

from __future__ import annotations

from typing import Any


def get_provider_info() -> dict[str, Any]:
    """The dictionary of Airflow's ``provider_info.schema.json``."""
    return {
        "package-name": "airflow-provider-allaboard",
        "name": "allaboard",
        "description": "Distributed training: deferrable, started exactly once, stopped with its task.",
        "versions": ["0.1.0"],
        "integrations": [
            {
                "integration-name": "allaboard",
                "external-doc-url": "https://pypi.org/project/airflow-provider-allaboard/",
                "tags": ["service"],
            }
        ],
        "operators": [
            {
                "integration-name": "allaboard",
                "python-modules": [
                    "allaboard_provider.operators.train",
                    "allaboard_provider.operators.shards",
                    "allaboard_provider.operators.checkpoints",
                    "allaboard_provider.operators.evaluate",
                    "allaboard_provider.operators.pick",
                    "allaboard_provider.operators.promote",
                ],
            }
        ],
        "sensors": [
            {
                "integration-name": "allaboard",
                "python-modules": [
                    "allaboard_provider.sensors.train",
                    "allaboard_provider.sensors.checkpoints",
                ],
            }
        ],
        "hooks": [
            {"integration-name": "allaboard", "python-modules": ["allaboard_provider.hooks.allaboard"]}
        ],
        "triggers": [
            {
                "integration-name": "allaboard",
                "python-modules": [
                    "allaboard_provider.triggers.train",
                    "allaboard_provider.triggers.jobs",
                    "allaboard_provider.triggers.checkpoints",
                    "allaboard_provider.triggers.assets",
                ],
            }
        ],
        "task-decorators": [
            {"name": "training", "class-name": "allaboard_provider.decorators.training.training_task"}
        ],
        "extra-links": ["allaboard_provider.links.TrainingLink"],
        "connection-types": [
            {
                "connection-type": "allaboard",
                "hook-class-name": "allaboard_provider.hooks.allaboard.AllaboardHook",
                "hook-name": "allaboard",
                "ui-field-behaviour": {
                    "hidden-fields": ["host", "schema", "login", "password", "port", "extra"],
                    "relabeling": {},
                    "placeholders": {},
                },
                "conn-fields": {
                    "backend": {
                        "label": "Backend",
                        "description": "Where runs live. local: processes of the worker's own machine. "
                        "kubernetes: job objects of the operators of a cluster.",
                        "schema": {
                            "type": ["string", "null"],
                            "default": "local",
                            "enum": ["local", "kubernetes"],
                        },
                    },
                    "kubernetes_conn_id": {
                        "label": "Kubernetes connection",
                        "description": "On a cluster: the connection of type kubernetes that names the "
                        "cluster and the user. Empty: kubernetes_default, which need not exist in a pod.",
                        "schema": {"type": ["string", "null"]},
                    },
                    "namespace": {
                        "label": "Namespace",
                        "description": "On a cluster: where runs live. Empty: that of the connection above.",
                        "schema": {"type": ["string", "null"]},
                    },
                    "store": {
                        "label": "Store",
                        "description": "The folder or s3://bucket/prefix that store:// stands for. Empty: "
                        "ALLABOARD_STORE, else ~/.allaboard/store, which no member on a cluster sees.",
                        "schema": {"type": ["string", "null"]},
                    },
                    "secrets": {
                        "label": "Secrets",
                        "description": "On a cluster: Secrets of the namespace, separated by commas. "
                        "Their keys become the environment of every member, such as the keys of the store.",
                        "schema": {"type": ["string", "null"]},
                    },
                    "image": {
                        "label": "Image",
                        "description": "On a cluster: the image of jobs that name none.",
                        "schema": {"type": ["string", "null"]},
                    },
                    "service_account": {
                        "label": "Service account",
                        "description": "On a cluster: that of every member. Empty: the namespace's default.",
                        "schema": {"type": ["string", "null"]},
                    },
                    "engine": {
                        "label": "Engine",
                        "description": "On a cluster: the kind of job object of jobs that name none.",
                        "schema": {"type": ["string", "null"], "examples": ["pytorchjob"]},
                    },
                    "gang": {
                        "label": "Gang scheduler",
                        "description": "On a cluster: the scheduler that starts all members together, of "
                        "jobs that name none. Empty: the one that the cluster has.",
                        "schema": {"type": ["string", "null"], "examples": ["coscheduling"]},
                    },
                    "mounts": {
                        "label": "Mounts",
                        "description": "Local runs: the folder of each storage of a job, as JSON: "
                        '{"/data": "./data"}. '
                        "Relative folders start at AIRFLOW_HOME.",
                        "schema": {"type": ["string", "null"]},
                    },
                    "fit": {
                        "label": "Fit",
                        "description": "Local runs: a job that asks for more than the machine has. "
                        "shrink: it gets less; strict: it is refused. Empty: strict in a pod, else shrink.",
                        "schema": {
                            "type": ["string", "null"],
                            "enum": ["shrink", "strict", None],
                        },
                    },
                },
            }
        ],
        "config": {
            "allaboard": {
                "description": "Options of the allaboard provider.",
                "options": {
                    "instance": {
                        "description": "The name of this Airflow installation; part of the key of every run. "
                        "Empty: made once per metadata database and kept in the Variable allaboard_instance.",
                        "version_added": "0.1.0",
                        "type": "string",
                        "example": "research",
                        "default": "",
                    },
                    "elsewhere": {
                        "description": "What a next try does whose local run lives on another host. stop: it "
                        "has the run stopped there, waits for its end, and resumes it here; fail: the try "
                        "fails, and its retries are used.",
                        "version_added": "0.1.0",
                        "type": "string",
                        "example": "fail",
                        "default": "stop",
                    },
                    "defer_after": {
                        "description": "Seconds for which the worker follows a run before its task defers. A "
                        "run that ends within them is spared the deferral, which takes at least 10 seconds. "
                        "0: it defers at once.",
                        "version_added": "0.1.0",
                        "type": "float",
                        "example": "0",
                        "default": "10",
                    },
                    "deferrable": {
                        "description": "Whether tasks without deferrable= wait in the triggerer. "
                        "Empty: AIRFLOW__OPERATORS__DEFAULT_DEFERRABLE where it is set, else True.",
                        "version_added": "0.1.0",
                        "type": "boolean",
                        "example": "True",
                        "default": None,
                    },
                },
            }
        },
    }
