"""Templates of prompts by task: several wordings each, in which the instruction stands before or after the passage.

`{passage}`, `{short}` (its first sentences), `{sentence}`, `{foreign}`, `{topic}` and the like are filled in by
`prompts.py`. `FOLLOW_UPS` continue a dialogue, by task.
"""

from __future__ import annotations

__all__ = ["FOLLOW_UPS", "TASKS"]

TASKS: dict[str, tuple[str, ...]] = {
    "write": (
        "Write a short encyclopedia article about {topic}.",
        "Write a news report of about 150 words on {topic}.",
        "Tell a short story about {topic}.",
        "Explain in two or three paragraphs: {topic}.",
        "Write a magazine article about {topic}. Mention places, people and numbers.",
        "Give me some background on {topic}, with dates and facts.",
        "Write an essay about {topic}.",
        "Describe {topic} for a school book.",
        "Write a press report about {topic} that quotes two people.",
        "Write a blog post about {topic}.",
        "I need a paragraph on {topic} for a travel guide.",
        "Write a letter to a newspaper about {topic}.",
    ),
    "summary": (
        "Summarize: {passage}",
        "{passage}\n\nSummarize the text above in two sentences.",
        "Summarize the following article.\n\n{passage}",
        "Give a short summary of this text:\n{passage}",
        "What is this text about? Answer in a few sentences.\n\n{passage}",
        "{passage}\n\nTL;DR",
        "Write a one-paragraph summary of the passage below.\n\n{passage}",
        "Read the text and list its three main points.\n\nText: {passage}",
        "{passage}\n\nWhat are the key points?",
        "Condense this to a headline and one sentence: {passage}",
        "Here is a report:\n\"{passage}\"\nSummarise it for a busy reader.",
        "Please write highlights for this article: {passage}",
    ),
    "translate": (
        "Translate German to English: {german}",
        "Translate from German to English: {german}",
        "Translate the following German sentence into English.\n{german}",
        "{german}\n\nWhat does this mean in English?",
        "How do you say this in English: \"{german}\"",
        "German: {german}\nEnglish:",
        "Please translate this into English: {german} {german2}",
        "Give me the English translation.\n\n{german}",
        "Translate {language2} to English: {foreign}",
        "Translate this {language2} sentence into English: {foreign}",
        "Translate into {language}: {sentence}",
        "Translate English to {language}: {sentence}",
        "{short}\n\nTranslate the text above into {language}.",
        "How would you write this in {language}? {sentence}",
        "Translate the following paragraph to {language}.\n\n{short}",
    ),
    "passage-qa": (
        "{passage}\n\nQuestion: What is known about {topic}?\nAnswer:",
        "Answer the question with the help of the text.\n\nText: {passage}\n\nQuestion: {question}",
        "{passage}\n\n{question}",
        "Context: {passage}\n\nUsing only the context, answer this question: {question}",
        "Question: {question}\n\nPassage: {passage}\n\nAnswer:",
        "Read this and answer briefly.\n{passage}\n\nQ: {question}\nA:",
        "I found this text about {topic}:\n\n{passage}\n\nAccording to it, {question}",
        "You are given documents and a question.\n\nDocument 1: {passage}\n\nDocument 2: {other}\n\nQuestion: {question}",
        "{other}\n\n{passage}\n\nBased on the paragraphs above: {question}",
        "Use the information below to answer.\n\n[1] {passage}\n[2] {other}\n\n{question}",
        "{passage}\n\nWhich sentence of the text tells most about {topic}? Quote it and explain.",
        "Here is a passage: {passage}\nAsk three questions about it and answer them.",
    ),
    "trivia": (
        "who invented {thing}", "when was {thing} invented", "what is the capital of {country}",
        "when did {event} begin", "where did {event} take place", "why did {event} happen",
        "what language do they speak in {country}", "what is the currency of {country}",
        "what is the highest mountain in {country}", "who was the leader during {event}",
        "what is {country} famous for", "how does {thing} work", "who is the president of {country}",
        "what are the main exports of {country}", "What is the population of {country}?",
        "how many people died in {event}", "what does {concept} mean", "Who discovered {concept}?",
        "what is the difference between {concept} and {concept2}", "when did {country} become independent",
        "Name three facts about {country}.", "which countries border {country}", "who wrote the first book about {topic}",
        "what came first, {thing} or {thing2}",
    ),
    "maths": (
        "{problem}", "{problem} Think step by step.", "Solve this problem and show your work: {problem}",
        "{problem}\nGive the final number at the end.", "Please help me with my homework. {problem}",
        "Question: {problem}\nAnswer:", "{problem} Explain how you got the answer.",
    ),
    "general": (
        "Explain {concept} to a child.", "What is {concept}, and why does it matter?",
        "How can I {activity}?", "Give me five tips to {activity}.", "Write a poem about {topic}.",
        "Make a list of questions that one could ask about {topic}.", "Compare {concept} and {concept2}.",
        "Pretend that you are {role}. Tell me about {topic}.", "You are {role}. How would you explain {concept}?",
        "What are the pros and cons of {topic}?", "Write an email to a friend about my plan to {activity}.",
        "Make a weekly plan for someone who wants to {activity}.", "Write a dialogue between {role} and a child about "
        "{topic}.", "Give an example of {concept} in everyday life.", "What would happen without {concept}?",
        "Suggest a title and an outline for a book about {topic}.", "I want to {activity}, but I have little time. "
        "What should I do first?", "Describe a picture that shows {topic}.",
        "Write a review of a documentary about {topic}.", "Argue for and against {topic} in a debate.",
        "Which mistakes do people make when they {activity}?", "Write three interview questions for {role}.",
        "What should a beginner know about {concept}? Use bullet points.", "Continue this story: {sentence}",
        "If I travel to {country} for a week, what should I see?", "Write a job advertisement for {role}.",
    ),
    "extract": (
        "Extract all names of people and places from this text.\n\n{passage}",
        "{passage}\n\nList every number or date in the text and say what it stands for.",
        "Turn this text into a table with the columns subject, action and place: {passage}",
        "Read the text and give the result as JSON with the keys \"title\", \"topic\" and \"summary\".\n\n{passage}",
        "{passage}\n\nWhich five keywords describe this text best?",
        "Find the nouns in this sentence: {sentence}",
        "Extract the following from the text: who, what, where, when.\n{passage}",
        "Is the tone of this text positive, negative or neutral? Give evidence from it.\n\n{short}",
        "Copy the most important sentence of the text word for word.\n\n{passage}",
    ),
    "rewrite": (
        "Rewrite this text in simple words: {short}", "{short}\n\nRewrite the text above in the past tense.",
        "Correct the grammar of this text: {short}", "Make this paragraph more formal.\n\n{short}",
        "Paraphrase: {sentence}", "Repeat the following text, but replace every full stop by an exclamation mark.\n\n"
        "{short}", "Turn this text into bullet points.\n{passage}", "Rewrite this as a dialogue: {short}",
        "{short}\n\nContinue the text.", "Put this text into the first person.\n\n{short}",
        "Copy this text exactly: {short}", "Shorten this text by half: {passage}",
        "Write a reply to this message: {short}",
    ),
    "code": (
        "Write a Python function that {program}.", "Explain what this code does.\n\n```\n{code}\n```",
        "```\n{code}\n```\n\nAdd comments to the code above.", "Write a program that {program}. Use {coding}.",
        "Rewrite this code so that it handles empty input.\n\n```\n{code}\n```", "Find possible bugs in this code:\n{code}",
        "Translate this code to {coding}:\n\n{code}", "Rename the variables in this code to longer names.\n\n```\n{code}\n```",
        "Write tests for this function.\n\n```\n{code}\n```", "How would you write a script that {program}?",
    ),
}  # fmt: skip

QUESTIONS = (
    "What is said about {topic}?", "What is the main idea?", "Why is {topic} important?", "Who is mentioned, and why?",
    "When did it happen?", "Where does it take place?", "What caused this?", "What are the consequences?",
    "How did {topic} change over time?", "What problem is described?", "What is the most surprising fact?",
    "How many people were affected?", "What will happen next?", "What does the author think of {topic}?",
    "Which reasons are given?", "What is the role of {topic} in society?", "How does it end?",
    "what is one example that the text gives?", "how is {topic} described?", "who benefits from it?",
)  # fmt: skip

FOLLOW_UPS: dict[str, tuple[str, ...]] = {
    "write": ("Now write it as a poem.", "Summarize that in one sentence.", "Translate the first paragraph into {language}.",
              "Make it shorter.", "Write a headline for it.", "Rewrite it for children.", "Ask me three questions about it."),
    "summary": ("Make it shorter.", "Now translate your summary into {language}.", "What is missing in your summary?",
                "{question}", "Give the text a title.", "List the names that occur in the text."),
    "translate": ("Which word was the hardest to translate?", "Now translate it into {language}.", "Explain the grammar.",
                  "Translate this too: {german}", "Use the main verb in another sentence."),
    "passage-qa": ("{question}", "How sure are you?", "Quote the sentence that supports your answer.",
                   "Summarize the passage in one sentence.", "Translate your answer into {language}."),
    "trivia": ("Tell me more.", "How do you know?", "when was that", "where is it", "Why?"),
    "maths": ("Check your answer.", "What if every number is doubled?", "Explain it in a simpler way.",
              "Write the calculation as one formula."),
    "general": ("Give me an example.", "Can you explain that in more detail?", "Make a list of the main points.",
                "Rewrite your answer in one sentence.", "Why is that?", "What is the opposite view?",
                "Write it in the style of {role}."),
    "extract": ("Sort your list by the alphabet.", "Now give it as JSON.", "Anything else?"),
    "rewrite": ("Make it shorter.", "Now make it funny.", "Translate it into {language}."),
    "code": ("Add error handling.", "Explain it line by line.", "Write it in {coding}.", "Can it be made faster?"),
}  # fmt: skip
