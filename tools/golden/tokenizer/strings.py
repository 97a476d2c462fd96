"""The hard strings that tokenizers are compared on: all valid Unicode text."""

import random

ADDED = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>", "<|norm|>", "<|caf\u00e9|>"]

WORDS = [
    "hello", " world", "It's", " don't", "we'll", "THEY'RE", "I'M", "you'D", "O'Reilly", "'s", "'S", "'ſ", "x'ſy",
    "'t", "'T", "'re", "'RE", "'rE", "'ve", "'Ve", "'m", "'ll", "'LL", "'lL", "'d", "'x", "''s", "'", "''", "'l", "'r", "'v",
    "straße", "Größe", "Ünïcödé", "café", "cafe\u0301", "na\u00efve", "nai\u0308ve", "Å", "A\u030a", "\u212b", "ﬁ", "ﬀ",
    "Москва", " ещё", "今天", "天气很好", "日本語", "カタカナ", "한국어", "\u1112\u1161\u11ab\u1100\u116e\u11a8", "각", "\u1100\u1161\u11a8",
    "שלום", "مرحبا", "नमस्ते", "हिन्दी", "สวัสดี", "ไทย", "தமிழ்", "Tiếng", "Tie\u0302\u0301ng", "e\u0323\u0302", "e\u0302\u0323", "ệ",
    "q\u0307\u0323", "q\u0323\u0307", "\u0344", "\u0308\u0301", "\u0958", "\u2126", "\u1e9b\u0323", "\u0f73", "\u0f71\u0f72",
    "🙂", "🚀", "👩‍💻", "👨‍👩‍👧‍👦", "🇩🇪", "❤️", "👍🏽", "1️⃣", "🏳️‍🌈", "∑", "→", "€", "½", "²", "③", "Ⅳ", "٣٤", "१२", "〇", "𝟘𝟙", "𝒳𝓎",
    "0", "7", "12", "123", "1234", "12345678901234567890", "3.14", "1e-5", "0x1F", "1,000,000", "v2", "2nd", "a1b2", "x86_64",
    "\n", "\r\n", "\r", "\n\n", "\r\n\r\n", "\t", "\t\t", " ", "  ", "   ", "\u00a0", "\u00a0\u00a0", "\u2003", "\u3000", "\u2028", "\u2029", "\u0085",
    "\u000b", "\u000c", "\u200b", "\ufeff", "\u00ad", "\u0000", "\u0001", "\u001b[0m", "\u007f", "\u0080", "\ufffd", "\uffff", "\U0010ffff", "\ue000",
    "if (x != nil) {", "}\n", "\treturn err\n", "// comment", "a->b", "x+=1;", "fmt.Println(\"hi\")", "func main() {\n\t", "&&", "||", "...", "---", "#!/bin/sh", "http://a.b/c?d=e&f=g",
    "<|endoftext", "|endoftext|>", "<|endoftext|", "< |endoftext|>", "<|ENDOFTEXT|>", "<|endof", "<tool_call", "tool_call>", "<|", "|>", "<", ">", "<<", "<|im_start", "Ġ", "Ċ", "Ġthe", "#version",
    "the", " the", "The", "ing", " token", " tokens", "_", "__init__", "snake_case", "camelCase", "SCREAMING", "\u0130", "\u0131", "ǅ", "ª", "º", "ʰ", "\u02bc", "\u2019s", "\uff07s",
]


def strings():
    out = ["", *WORDS, *ADDED]
    for a in ADDED:
        out += [a + a, "x" + a, a + "x", " " + a, a + " ", " " + a + " ", "\n" + a + "\n", a[:-1] + a, "<" + a, a + ">", "don't" + a + "'s", "  " + a + "  y", "e" + a + "\u0301", "12" + a + "34"]
    for n in (2, 3, 7, 8, 16, 31, 100, 300):
        for c in (" ", "\n", "\t", "\u00a0", "a", "A", "1", "-", "=", "é", "e\u0301", "中", "🙂", "\u0301", "\r\n", " \n", "ab", "0 ", "'s", "<"):
            if n <= 100 or c in (" ", "a", "\u0301", "中", "-"):
                out.append(c * n)
    for blanks in (" ", "  ", "\n ", " \n", " \n ", "\r\n  ", "\t ", " \t", "\u00a0 ", " \u00a0", "\u3000 ", "\n\n\t", "\u0085 ", "\u2028 "):
        for word in ("x", "1", "!", "é", "中", "\u0301", "'s"):
            out += [blanks + word, word + blanks + word, word + blanks]
    out += [
        "e" + "\u0301" * 40,  # more than 30 marks in a row
        "a" + "\u0323\u0307" * 25 + "b",
        "a" + "\u0307\u0323" * 25 + "b",
        "donaudampfschifffahrtsgesellschaft" * 20,
        "".join(chr(0x4E00 + 7 * i) for i in range(400)),
        "".join(chr(0x61 + (i * i) % 26) for i in range(1000)),
        "x 10D40 \U00010d40 \U0002ebf0 \U000105c0 \U00011de0 \U0001ccf3 \U00013460",  # younger than Unicode 15
        "x\u0345\u07fd x\u0345\u0898 \U00011938 \U00011935\U00011930 e\u0301\U00011938",
    ]
    rng = random.Random(20261130)
    for _ in range(250):
        out.append("".join(rng.choice(WORDS + ADDED) for _ in range(rng.randint(2, 12))))
    for _ in range(60):
        out.append("".join(chr(rng.choice([rng.randint(0, 0x7F), rng.randint(0x80, 0x2FF), rng.randint(0x300, 0x36F), rng.randint(0x370, 0xD7FF), rng.randint(0xE000, 0xFFFF), rng.randint(0x10000, 0x1FFFF)])) for _ in range(rng.randint(1, 40))))
    return list(dict.fromkeys(out))
