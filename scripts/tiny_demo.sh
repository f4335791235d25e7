#!/usr/bin/env bash
# Train a tiny model on the stories in data/, then let it write: a demonstration of a few minutes.
# It learns on the very text that it is judged by: its loss says nothing about how well it would do elsewhere.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$PWD/.venv/bin:$PATH"
run=runs/tiny-demo
nlm data add data/stories.txt --split train --name demo
nlm tokenizer train data/stories.txt --vocab-size 1024 --out data/demo/tokenizer.json
nlm data prepare --name demo --tokenizer data/demo/tokenizer.json
if [ -e "$run/config.json" ]; then
  nlm train --resume --out "$run"
else
  nlm train --preset tiny --data demo --out "$run"
fi
nlm generate "$run" --prompt "Once upon a time" --max-new-tokens 100
