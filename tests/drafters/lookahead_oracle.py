"""Lookahead decoding as the paper describes it, over a rule that says what follows a text: slow, plain, independent.

Source: Fu et al., arXiv 2402.02057, sections 3 and 4; layout of rows as published: the first holds W - 1 guesses behind
the last token of the text, the others W each.
"""

from __future__ import annotations


def lookahead(say, prompt, rounds, W, N, G, fill, from_prompt):
    """Greedy text and, for each round after the prompt's pass, the guesses tried and the rows of the window."""
    text, rows, pool, log = [*prompt, say(prompt)], [[fill] * (W + N - 3)], {}, []
    read = 0 if from_prompt else len(prompt) - 1

    def learn(key, value):
        held = pool.setdefault(key, [])
        if value in held:
            held.remove(value)
        held.append(value)
        del held[:-G]

    for _ in range(rounds):
        while read + N <= len(text):
            learn(text[read], tuple(text[read + 1 : read + N]))
            read += 1
        last = text[-1]
        tried = list(reversed(pool.get(last, [])))
        log.append((tried, [list(row) for row in rows]))
        # What the target says at the end of each column: it sees the text, the first row up to the column, the column.
        columns = len(rows[0]) + 1 if len(rows) == 1 else len(rows[1])
        said = [say([*text, *rows[0][:at], *(row[at] for row in rows[1:])]) for at in range(columns)]
        best = max((matching(say, text, guess) for guess in tried), default=0)
        accepted = []
        while len(accepted) < best:
            accepted.append(say([*text, *accepted]))
        text += [*accepted, say([*text, *accepted])]
        if len(rows) == N - 1:
            for at in range(columns):
                learn(last if at == 0 else rows[0][at - 1], (*(row[at] for row in rows[1:]), said[at]))
            below, lost = [*rows[1:], said], best
            moved = [below[0][1 + best :], *(row[best:] for row in below[1:])]
            lengths = [W - 1] + [W] * (N - 2)
        else:
            moved, lost = [row[1 + best :] for row in [*rows, said]], 1 + best
            lengths = [len(row) - 1 for row in [*rows, said]]
        rows = [(row + [fill] * lost)[:length] for row, length in zip(moved, lengths, strict=True)]
    return text, log


def matching(say, text, guess):
    """How many tokens of `guess` are what the target says."""
    count = 0
    while count < len(guess) and guess[count] == say([*text, *guess[:count]]):
        count += 1
    return count
