"""What Airflow is told about this provider (entry point ``apache_airflow_provider``). Plain data: no import
of our own.
"""

from __future__ import annotations

from typing import Any


def get_provider_info() -> dict[str, Any]:
    """The dictionary of Airflow's ``provider_info.schema.json``."""
    return {
        "package-name": "airflow-provider-allaboard",
        "name": "allaboard",
        "description": "Distributed training: deferrable, started exactly once, stopped when its task is.",
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
                ],
            }
        ],
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
                        "description": "Where runs live. local: real processes of the worker's own machine. "
                        "kubernetes: job objects of the operators that a cluster has.",
                        "schema": {
                            "type": ["string", "null"],
                            "default": "local",
                            "enum": ["local", "kubernetes"],
                        },
                    },
                    "kubernetes_conn_id": {
                        "label": "Kubernetes connection",
                        "description": "On a cluster: the connection of type kubernetes that says which one, "
                        "as whom. Empty: kubernetes_default, which need not exist in a pod.",
                        "schema": {"type": ["string", "null"]},
                    },
                    "namespace": {
                        "label": "Namespace",
                        "description": "On a cluster: where runs live. Empty: what that connection says.",
                        "schema": {"type": ["string", "null"]},
                    },
                    "store": {
                        "label": "Store",
                        "description": "The folder or s3://bucket/prefix that every store:// path hangs off. "
                        "Empty: ALLABOARD_STORE, or ~/.allaboard/store, which no member on a cluster sees.",
                        "schema": {"type": ["string", "null"]},
                    },
                    "secrets": {
                        "label": "Secrets",
                        "description": "On a cluster: names of Secrets there, by commas, whose keys are "
                        "the environment of every member: what they need to use the store, say.",
                        "schema": {"type": ["string", "null"]},
                    },
                    "image": {
                        "label": "Image",
                        "description": "On a cluster: the image of jobs that name none.",
                        "schema": {"type": ["string", "null"]},
                    },
                    "service_account": {
                        "label": "Service account",
                        "description": "On a cluster: of every member. Empty: the namespace's default.",
                        "schema": {"type": ["string", "null"]},
                    },
                    "engine": {
                        "label": "Engine",
                        "description": "On a cluster: the kind of job object, for jobs that do not say.",
                        "schema": {"type": ["string", "null"], "examples": ["pytorchjob"]},
                    },
                    "gang": {
                        "label": "Gang scheduler",
                        "description": "On a cluster: who starts all members together, for jobs that do not "
                        "say. Empty: what is found there.",
                        "schema": {"type": ["string", "null"], "examples": ["coscheduling"]},
                    },
                    "mounts": {
                        "label": "Mounts",
                        "description": 'Local runs: what a job\'s storage is, as JSON: {"/data": "./data"}. '
                        "Relative folders start at AIRFLOW_HOME.",
                        "schema": {"type": ["string", "null"]},
                    },
                    "fit": {
                        "label": "Fit",
                        "description": "Local runs: more is asked for than there is: shrink it, or refuse it "
                        "(strict). Empty: strict in a pod, else shrink.",
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
                    "deferrable": {
                        "description": "Whether tasks wait in the triggerer, unless they say themselves. "
                        "Empty: as AIRFLOW__OPERATORS__DEFAULT_DEFERRABLE says if it is set, else they do.",
                        "version_added": "0.1.0",
                        "type": "boolean",
                        "example": "True",
                        "default": None,
                    },
                },
            }
        },
    }
