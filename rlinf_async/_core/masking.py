"""Masking of secrets: values by their names, texts by patterns of secrets, environment variables by an allow-list."""

from __future__ import annotations

import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any, Final

_WORDS: Final = (
    r"TOKEN(?!I[SZ])|SECRET|PASSW|PASSPHRASE|PASSCODE|PASS(?![A-Z])|PWD|CREDENTIAL|PRIVATE|SIGNATURE|BEARER|COOKIE"
    # The look-aheads exclude "tokenizer", "tokenise" and "author".
    r"|WEBHOOK|AUTH(?!ORS?(?![A-Z]))|(?<![A-Z])(?:JWT|DSN|SAS|PAT|PIN|OTP)(?![A-Z])"
)
_SECRET: Final = re.compile(rf"KEY|{_WORDS}", re.IGNORECASE)
# Names that make a number a secret; all other numbers are limits, such as ``max_tokens`` or ``num_keys``.
_SECRET_NUMBER: Final = re.compile(r"PASS[WPC]|PWD|SECRET|(?<![A-Z])(?:PIN|OTP)(?![A-Z_])", re.IGNORECASE)

_NAME: Final = rf"(?:(?:API|ACCESS|ACCOUNT|SSH|SIGNING)[_.-]?KEY|{_WORDS})[\w.-]{{0,64}}"
_ASSIGNED: Final = re.compile(
    # ``--api-key VALUE``; ``password=VALUE`` in a command line, a query, a connection string; ``"token": "VALUE"``.
    rf"((?<!\S)--?[\w.-]{{0,64}}{_NAME}\s+(?!-)|{_NAME}=|{_NAME}[\"']\s*:\s*(?=[\"']))(\"[^\"]*\"|'[^']*'|[^\s&]+)",
    re.IGNORECASE,
)
# User part of a URL: a name and a password, or a single name, which may be a token.
_USER: Final = re.compile(r"(://)(?:[^/\s:@]+:?(?:(?<=:)x-oauth-basic)?|([^/\s:@]*:)[^/\s]+)(?=@)")

# Tokens with the well-known prefixes of services, JSON web tokens, private keys.
_SHAPES: Final = re.compile(
    r"\b(?:sk-[\w-]{16,}|gh[pousr]_\w{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}|hf_[A-Za-z0-9]{20,}|xox[a-z]-[\w-]{10,}"
    r"|A[KS]IA[0-9A-Z]{16}|AIza[\w-]{30,}|eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*)"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*"
)

_MASK: Final = "***"

# Variables whose values a bundle shows, unless their names suggest a secret.
_HARMLESS: Final = (
    *("RLINF_*", "NCCL_*", "GLOO_*", "UCX_*", "CUDA_*", "NVIDIA_*", "OMP_*", "KMP_*", "MKL_*", "OPENBLAS_*"),
    *(
        "MALLOC_*",
        "TORCH_*",
        "TORCHINDUCTOR_*",
        "TORCHELASTIC_*",
        "PYTORCH_*",
        "TRITON_*",
        "XLA_*",
        "JAX_*",
        "TF_*",
        "MUJOCO_*",
    ),
    *("PYTHON*", "VIRTUAL_ENV", "CONDA_PREFIX", "CONDA_DEFAULT_ENV", "LD_*"),
    *("PATH", "HOME", "TMPDIR", "LANG", "LC_*", "TZ", "TERM", "SHELL", "USER", "HOSTNAME", "XDG_RUNTIME_DIR"),
    *("HF_HOME", "HF_*_CACHE", "HF_*OFFLINE", "TRANSFORMERS_CACHE", "TRANSFORMERS_OFFLINE", "WANDB_MODE", "WANDB_DIR"),
    *("SLURM_JOB_ID", "SLURM_JOB_NAME", "SLURM_JOB_PARTITION", "SLURM_CLUSTER_NAME", "SLURM_PROCID", "SLURM_LOCALID"),
    *("SLURM_STEP_ID", "SLURM_*NODE*", "SLURM_*TASKS*", "SLURM_*CPU*", "SLURM_*GPU*", "SLURM_*MEM*"),
)


def shown(name: str, value: str) -> str:
    """Return a value as a log may show it: ``***`` if its name suggests a secret, else with secrets in it masked."""
    if _SECRET.search(name):
        return _MASK
    value = _USER.sub(rf"\1\2{_MASK}", value)
    return _SHAPES.sub(_MASK, _ASSIGNED.sub(rf"\1{_MASK}", value))


def masked(data: Any, name: str = "") -> Any:
    if isinstance(data, Mapping):
        if name == "env_vars":
            return masked_variables(data)
        is_secret = _SECRET.search(name) is not None
        return {key: masked(value, name if is_secret else str(key)) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [masked(each, name) for each in data]
    if isinstance(data, int | float) and not isinstance(data, bool) and _SECRET_NUMBER.search(name):
        return _MASK
    return shown(name, data) if isinstance(data, str) else data


def masked_texts(data: Any) -> Any:
    """Return plain data, whose keys the framework defined, with the secrets in its texts masked."""
    if isinstance(data, Mapping):
        return {key: masked_texts(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [masked_texts(each) for each in data]
    return shown("", data) if isinstance(data, str) else data


def masked_variables(environment: Mapping[str, Any]) -> dict[str, str]:
    """Return the values of harmless variables, and only the lengths of all other values."""
    return {
        name: shown(name, str(value)) if _is_harmless(name) else f"{_MASK} (length {len(str(value))})"
        for name, value in environment.items()
    }


def _is_harmless(name: str) -> bool:
    return _SECRET.search(name) is None and any(fnmatchcase(name, pattern) for pattern in _HARMLESS)
