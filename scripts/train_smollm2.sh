#!/bin/sh
# Makes the heads of checkpoints/smollm2-135m again: the target writes the data, its states are stored once, and every
# head is trained on them. Each step goes on where it was stopped when this is run again.
#
#   DATA=...     folder for data and features (about 2 GB and 5 GB a million tokens); by default build/smollm2-135m
#   TOKENS=...   tokens of answers to write; MORE=... of fresh ones, for the last run of EAGLE
#   EAGLE=... MEDUSA=... EAGLE3=... DRAFT=...   minutes of one run of training, on two cores
set -eu
cd "$(dirname "$0")/.."
DATA=${DATA:-build/smollm2-135m}
OUT=${OUT:-checkpoints/smollm2-135m}
TOKENS=${TOKENS:-720000}
MORE=${MORE:-512000}
TARGET=smollm2-135m

# `again FOLDER` is --resume where a run has left something in FOLDER.
again() { if [ -e "$1/index.json" ] || [ -d "$1/checkpoints" ]; then echo --resume; fi; }
# A head that is finished says so beside its weights, and is not trained again.
finished() { grep -q '"finished": true' "$1/training.json" 2>/dev/null; }

specdec distill "$TARGET" --out "$DATA/text" --tokens "$TOKENS" --seed 1 $(again "$DATA/text")
# Two processes, a core each, write into folders of their own that are read as one.
more() { OMP_NUM_THREADS=1 specdec distill "$TARGET" --out "$DATA/more/$1" --tokens $((MORE / 2)) --seed "$1" $(again "$DATA/more/$1"); }
more 11 &
first=$!
more 12
wait "$first" # by its number, or its failure would not be seen
# The states that EAGLE-3 reads are all that any head reads.
for text in text more; do
    specdec train eagle3 --target "$TARGET" --data "$DATA/$text" --out "$DATA/none" \
        --store "$DATA/features-$text" --store-only
done

train() {
    kind=$1 text=${FRESH:-text}
    shift
    finished "$DATA/runs/$kind" || specdec train "${kind%-run*}" --target "$TARGET" --data "$DATA/$text" \
        --store "$DATA/features-$text" --out "$DATA/runs/$kind" $(again "$DATA/runs/$kind") "$@"
    case $kind in *-run*) return ;; esac
    # Checkpoints of the run stay where they are; what is published is the head alone.
    mkdir -p "$OUT/$kind"
    find "$DATA/runs/$kind" -maxdepth 1 -type f -exec cp {} "$OUT/$kind/" \;
}

# A head goes on from its own first runs, at a lower rate and in another order.
train eagle-run1 --draft-vocab 16384 --minutes "${EAGLE:-9}"
train eagle-run2 --start "$DATA/runs/eagle-run1" --lr 1.2e-3 --seed 1 --minutes "${EAGLE:-6}"
train eagle-run3 --start "$DATA/runs/eagle-run2" --lr 1e-3 --seed 2 --minutes "${EAGLE:-6}"
FRESH=more train eagle --start "$DATA/runs/eagle-run3" --lr 1e-3 --seed 3 --minutes "${EAGLE:-13}"
train medusa-run1 --draft-vocab 16384 --minutes "${MEDUSA:-6}"
train medusa --start "$DATA/runs/medusa-run1" --lr 1.2e-3 --seed 1 --minutes "${MEDUSA:-5}"
train eagle3 --draft-vocab 16384 --minutes "${EAGLE3:-4}"
train draft-model --minutes "${DRAFT:-6}"
