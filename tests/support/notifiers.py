"""Notifiers of Airflow for tests: one that keeps what it is to say, and one that fails."""

from __future__ import annotations

from airflow.sdk import BaseNotifier, Context


class Pager(BaseNotifier):
    """Keeps what it is to say."""

    template_fields = ("text",)

    def __init__(self, text: str = "{{ kcr.text }}") -> None:
        super().__init__()
        self.text = text
        self.said: list[str] = []

    def notify(self, context: Context) -> None:
        """Keep it."""
        self.said.append(self.text)


class Broken(BaseNotifier):
    """Fails, with its secret address in the error."""

    def notify(self, context: Context) -> None:
        """Fail."""
        raise ConnectionError("https://hooks.example.com/secret")
