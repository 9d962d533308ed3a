"""The built-in prompts, by task. They are for measuring: no drafter may be trained on them."""

from __future__ import annotations

__all__ = ["TEXTS"]

_FUNCTION = """def totals(rows):
    result = {}
    for row in rows:
        name = row["customer"]
        amount = row["amount"]
        if name not in result:
            result[name] = 0
        result[name] = result[name] + amount
    return result"""

_CLASS = """class Stack:
    def __init__(self):
        self.items = []

    def push(self, item):
        self.items.append(item)

    def pop(self):
        return self.items.pop()

    def size(self):
        return len(self.items)"""

_LOOP = """function longest(words) {
  var best = "";
  for (var i = 0; i < words.length; i++) {
    var word = words[i];
    if (word.length > best.length) {
      best = word;
    }
  }
  return best;
}"""

_MAIL = (
    "Hello Ms Ortega, this is Priya Nair from Harbour Tools. Your order 48213 for two bench vices left our store in "
    "Leith on 14 March and should arrive on 18 March. The invoice over 236.40 euros is attached. If anything is "
    "missing, call 0131 555 0190 or write to help@harbourtools.example. Kind regards, Priya"
)
_LOG = (
    "09:14:02 pump-3 pressure 4.1 bar ok\n09:14:32 pump-3 pressure 4.3 bar ok\n09:15:02 pump-1 pressure 7.9 bar high\n"
    "09:15:32 pump-1 pressure 8.4 bar high\n09:16:02 pump-2 pressure 1.2 bar low\n09:16:32 pump-3 pressure 4.2 bar ok"
)
_MINUTES = (
    "The garden committee met on Tuesday. Amara reported that the water tank leaks near the tap. Jonas offered to seal "
    "it before Saturday. Lin asked for thirty metres of fence along the north side; the committee agreed to pay for "
    "twenty. Ruth will order the seeds for spring and asked everyone to send her wishes by the end of the month."
)
_LIGHTHOUSE = (
    "The lighthouse on the eastern point was built in 1871, after three ships had been lost on the reef within one "
    "winter. For almost a century a keeper and his family lived in the low house beside it, trimming the lamp, winding "
    "the clockwork that turned the lens, and writing down the weather four times a day. In 1968 the light was made "
    "automatic and the last keeper moved to the mainland. The house stood empty until a group of teachers turned it "
    "into a school camp. Today children sleep where the oil was stored, and the old weather books, which cover more "
    "than ninety years without a gap, are used by people who study how storms on this coast have changed."
)
_BICYCLE = (
    "When the town closed its market square to cars, shop owners feared that customers would stay away. A count made "
    "before and after tells another story. In the first month fewer people came, but by the end of the year the number "
    "of visitors on weekdays had grown by a fifth, and on Saturdays by more than a third. Most came on foot or by "
    "bicycle, stayed longer and spent a little less at each visit, but came more often. Two furniture shops, whose "
    "customers need a car, moved to the edge of the town. Four cafes and a repair shop for bicycles opened."
)
_BEES = (
    "Honey bees keep the middle of their nest at about 35 degrees, in summer and in winter. When it is too warm, some "
    "bees bring water, others fan their wings at the entrance, and the drops that dry carry the heat away. When it is "
    "too cold, they gather in a ball around the queen and shiver with the muscles of flight, while the wings stand "
    "still. Those at the rim move inwards after a while and others take their place. A colony that begins the winter "
    "with too few bees cannot keep this up, and it is this, more than hunger, from which small colonies die."
)

TEXTS: dict[str, tuple[str, ...]] = {
    "chat": (
        "I have moved to a small town where I know nobody. Give me five ideas for meeting people.",
        "Explain to a child of ten why the moon seems to change its shape.",
        "My houseplant has yellow leaves. Ask me what you need to know, and say what the usual causes are.",
    ),
    "code edit": (
        f"Add type hints and a docstring to this function and give the whole function back:\n\n{_FUNCTION}",
        f"Add a method `peek` that returns the last item, and give the whole class back:\n\n{_CLASS}",
        f"Rewrite this function with `let` and `const` in place of `var`, and change nothing else:\n\n{_LOOP}",
    ),
    "extraction": (
        f"Write the sender, company, order number, amount and telephone number of this mail as JSON:\n\n{_MAIL}",
        f"List the lines of this log that are not ok, exactly as they stand:\n\n{_LOG}",
        f"Make a table with the columns person and task from these minutes:\n\n{_MINUTES}",
    ),
    "summary": (
        f"Summarise this text in three sentences:\n\n{_LIGHTHOUSE}",
        f"Summarise what happened, first for the shops and then for the visitors:\n\n{_BICYCLE}",
        f"Give the main points of this text as a list:\n\n{_BEES}",
    ),
    "reasoning": (
        "A train leaves at 9:40 and needs 2 hours and 35 minutes. It waits 15 minutes on the way. When does it arrive? "
        "Explain each step.",
        "A baker sells loaves for 3 euros and rolls for 50 cents. In one hour she sold 40 pieces for 70 euros. How "
        "many loaves were there? Work it out step by step.",
        "Anna is older than Ben. Carl is younger than Ben but older than Dora. Who is the second oldest? Say how you "
        "know.",
    ),
    "translation": (
        "Translate into French: The library is closed on Mondays. On the other days you can borrow books until seven "
        "in the evening.",
        "Translate into German: My sister has found a flat near the river. She moves in next month and needs help with "
        "the boxes.",
        "Translate into Spanish: It rained the whole night, but in the morning the sky was clear and the streets were "
        "already dry.",
    ),
}
