"""A client that was dropped is destroyed in a thread of ours, wherever Python collects its garbage."""

from __future__ import annotations

import subprocess
import sys

import pytest

# The library ends the process if it goes wrong, hence one of its own. No server listens at that address.
DROPPED_WITH_A_QUESTION_OPEN = '''
import gc, queue, threading
from datetime import timedelta
from airflow_kcr.kafka import calls as kafka_calls
from airflow_kcr.kafka.calls import AdminCalls
from airflow_kcr.settings import KafkaSettings
from confluent_kafka import TopicCollection

class Dropped(queue.SimpleQueue):
    """Lets the collection go on when our thread has let go, or waits for this call to end the client."""

    def __init__(self):
        super().__init__()
        self.gets, self.let_go = 0, threading.Event()

    def get(self):
        self.gets += 1
        if self.gets == 2:
            self.let_go.set()
        return super().get()

    def put(self, one):
        super().put(one)
        self.let_go.wait(1)

gc.disable()
kafka_calls._DROPPED = Dropped()
calls = AdminCalls(KafkaSettings({"bootstrap.servers": "127.0.0.1:1"}), timedelta(seconds=5))
collected = threading.Event()

def collect(answer):
    assert threading.current_thread() is not threading.main_thread()
    gc.collect()
    collected.set()

asked = calls._client("").describe_topics(TopicCollection(["t"]), request_timeout=1.0)["t"]
asked.add_done_callback(collect)
ring = [calls]
ring.append(ring)
del calls, ring
assert collected.wait(30), "no answer"
print("alive")
'''

CLOSED = """
import threading, weakref
from datetime import timedelta
from airflow_kcr.kafka.calls import AdminCalls
from airflow_kcr.settings import KafkaSettings

calls = AdminCalls(KafkaSettings({"bootstrap.servers": "127.0.0.1:1"}), timedelta(seconds=5))
calls.close()
assert not calls._kept.alive
print("alive")
"""


@pytest.mark.parametrize("script", [DROPPED_WITH_A_QUESTION_OPEN, CLOSED], ids=["dropped", "closed"])
def test_a_client_that_is_let_go_ends_no_process(script: str) -> None:
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=500)
    assert (ran.returncode, ran.stdout) == (0, "alive\n"), ran.stderr
