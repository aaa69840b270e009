"""OpenAI's client against `augury serve`, with speculation switched off for one request.

augury serve default -sc '{"method": "ngram", "num_speculative_tokens": 5}' &
pip install openai
python examples/openai_client.py [URL] [MAX_TOKENS]
"""

import sys

from openai import OpenAI

QUESTION = [{"role": "user", "content": "Write this line again: the cat sat on the mat, the cat sat on the mat."}]


def main(url: str = "http://127.0.0.1:8000", max_tokens: int = 32) -> None:
    client = OpenAI(base_url=f"{url}/v1", api_key="none")
    model = client.models.list().data[0].id
    asked = {"model": model, "messages": QUESTION, "temperature": 0.8, "seed": 7, "max_tokens": max_tokens}
    fast = client.chat.completions.create(**asked)
    plain = client.chat.completions.create(**asked, extra_body={"speculative": {"enabled": False}})
    print(fast.choices[0].message.content)
    print(f"same text without speculation: {fast.choices[0].message.content == plain.choices[0].message.content}")
    print("of this request:", fast.model_extra["metrics"]["speculative_decoding"])
    for chunk in client.chat.completions.create(**asked, stream=True):
        print(chunk.choices[0].delta.content or "", end="", flush=True)
    print()


if __name__ == "__main__":
    main(*sys.argv[1:2], *map(int, sys.argv[2:3]))
