#!/usr/bin/env bash
# run.sh [CONFIG] [key=value ...]: trains with a configuration of config/math/, by default two_terms_disaggregated.
set -euo pipefail
folder="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
config=two_terms_disaggregated
if [[ $# -gt 0 && $1 != *=* ]]; then
    config=$1
    shift
fi
exec "${PYTHON:-python}" "$folder/main_grpo.py" --config "$config" "$@"
