"""A plain consumer in a process of its own, as one would write it: subscribe, consume, write down, commit by itself.

`python -m tests.benchmarks.bare_consumer OUTPUT TOPIC SETTINGS`, the settings as JSON; SIGTERM closes it.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
from pathlib import Path
from types import FrameType

from confluent_kafka import Consumer

AT_ONCE = 500
WAIT = 0.05


def main(output: Path, topic: str, settings: dict[str, str]) -> None:
    """Consume until SIGTERM."""
    over = threading.Event()

    def end(number: int, frame: FrameType | None) -> None:
        over.set()

    signal.signal(signal.SIGTERM, end)
    consumer = Consumer(settings)
    consumer.subscribe([topic])
    with output.open("a", buffering=1 << 20, encoding="utf-8") as out:
        while not over.is_set():
            for message in consumer.consume(AT_ONCE, WAIT):
                if message.error() is None:
                    out.write(json.dumps({"partition": message.partition(), "offset": message.offset()}) + "\n")
            out.flush()
    consumer.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3]))
