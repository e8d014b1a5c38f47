"""A Kubernetes API server on this machine, as far as Spark's client needs one.

There is no cluster to be had in a test: no container runtime, and no API server from a package registry. What Spark
speaks to is this double, over TLS; Spark's own client is the real one. It is stubborn in what a page of ours promises:
tokens, and the roles that its manifest grants. `tests.support.kubelet` is the node.

Left out, and so not tried by any test: watches over WebSocket (the client is refused and falls back to HTTP),
conflicts, history that is forgotten, quotas, admission, and every kind that Spark doesn't ask for.
"""

from __future__ import annotations

import base64
import copy
import json
import re
import secrets
import ssl
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final, TypeAlias
from urllib.parse import parse_qs, urlsplit

import yaml

from tests.support.certificates import authority

Json: TypeAlias = dict[str, Any]

WATCH_WITHIN: Final = 20.0
"""Seconds after which a watch ends; the real server's limit is a random one of 30 to 60 minutes."""

PORT: Final = 443
"""Where pods look for the server, at the name `kubernetes.default.svc`."""

GRACE: Final = 30
"""Seconds between SIGTERM and SIGKILL where neither pod nor caller says."""

ADMIN: Final = "admin"
_RBAC: Final = "rbac.authorization.k8s.io"
_KINDS: Final = {
    "pods": ("", "Pod"),
    "configmaps": ("", "ConfigMap"),
    "secrets": ("", "Secret"),
    "services": ("", "Service"),
    "serviceaccounts": ("", "ServiceAccount"),
    "persistentvolumeclaims": ("", "PersistentVolumeClaim"),
    "networkpolicies": ("networking.k8s.io", "NetworkPolicy"),
    "roles": (_RBAC, "Role"),
    "rolebindings": (_RBAC, "RoleBinding"),
}
"""Each kind's plural, with its group and its name."""

_PATH: Final = re.compile(
    r"/(?:api|apis/(?P<group>[a-z0-9.]+))/v1/namespaces/(?P<namespace>[^/]+)/(?P<plural>[a-z]+)"
    r"(?:/(?P<name>[^/]+))?(?:/(?P<part>[a-z]+))?"
)
_TERM: Final = re.compile(r"(?P<not>!)?(?P<key>[\w./-]+)(?:\s*(?P<op>==|=|!=|notin|in)\s*(?P<values>\([^)]*\)|[^,]*))?")


class Refusal(Exception):
    """An answer of the server that is no object: its status, reason and message."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.code, self.reason, self.message = code, reason, message

    def status(self) -> Json:
        """Return it as the server writes it."""
        told = {"status": "Failure", "message": self.message, "reason": self.reason, "code": self.code}
        return {"kind": "Status", "apiVersion": "v1", "metadata": {}, **told}


def not_found(plural: str, name: str) -> Refusal:
    """Return the answer about an object that is not there."""
    return Refusal(404, "NotFound", f'{plural} "{name}" not found')


@dataclass(frozen=True, slots=True)
class Event:
    """A change, with the object before and after it."""

    revision: int
    kind: str
    plural: str
    before: Json | None
    after: Json


@dataclass(frozen=True, slots=True)
class Selection:
    """Which objects of a kind: by namespace (empty: all), labels and fields."""

    namespace: str
    plural: str
    labels: str = ""
    fields: str = ""

    def has(self, one: Json | None) -> bool:
        """Whether an object is one of them."""
        if one is None or self.namespace not in ("", one["metadata"]["namespace"]):
            return False
        labels: Mapping[str, str] = one["metadata"].get("labels") or {}
        return _selects(self.labels, labels.get) and _selects(self.fields, lambda path: _at(one, path))


class Objects:
    """What the server stores, with its history; every call is atomic."""

    def __init__(self) -> None:
        self._objects: dict[tuple[str, str, str], Json] = {}
        self._events: list[Event] = []
        self._revision = 1
        self.changed = threading.Condition(threading.RLock())

    # -- one -----------------------------------------------------------------------------------------------------

    def get(self, plural: str, namespace: str, name: str) -> Json:
        """Return an object, or refuse."""
        with self.changed:
            found = self._objects.get((plural, namespace, name))
            if found is None:
                raise not_found(plural, name)
            return copy.deepcopy(found)

    def create(self, plural: str, namespace: str, given: Json) -> Json:
        """Store a new object."""
        one = copy.deepcopy(given)
        name = one["metadata"]["name"]
        with self.changed:
            if (plural, namespace, name) in self._objects:
                raise Refusal(409, "AlreadyExists", f'{plural} "{name}" already exists')
            one["metadata"] |= {"namespace": namespace, "uid": str(uuid.uuid4()), "creationTimestamp": now()}
            group, kind = _KINDS[plural]
            one |= {"kind": kind, "apiVersion": f"{group}/v1" if group else "v1"}
            if plural == "pods":
                one["status"] = {"phase": "Pending", "conditions": []}
                one["spec"].setdefault("serviceAccountName", "default")
                one["spec"].setdefault("terminationGracePeriodSeconds", GRACE)
            return self._store("ADDED", plural, one)

    def replace(self, plural: str, namespace: str, name: str, given: Json) -> Json:
        """Store another state of an object."""
        with self.changed:
            before = self.get(plural, namespace, name)
            after = {**copy.deepcopy(given), "kind": before["kind"], "apiVersion": before["apiVersion"]}
            kept = {key: before["metadata"][key] for key in ("uid", "creationTimestamp", "namespace", "name")}
            after["metadata"] |= kept
            if plural == "pods":
                after["status"] = before["status"]  # which is the kubelet's
            return self._store("MODIFIED", plural, after)

    def merge(self, plural: str, namespace: str, name: str, patch: Json) -> Json:
        """Change an object as a merge patch says; the kubelet's reports too."""
        with self.changed:
            before = self.get(plural, namespace, name)
            return self._store("MODIFIED", plural, _merged(before, patch))

    def delete(self, plural: str, namespace: str, name: str, options: Json) -> Json:
        """Delete an object; a pod is only marked, and its kubelet removes it when its containers are gone."""
        with self.changed:
            one = self.get(plural, namespace, name)
            if plural != "pods":
                self.remove(plural, namespace, name)
                return one
            grace = options.get("gracePeriodSeconds")
            grace = one["spec"]["terminationGracePeriodSeconds"] if grace is None else grace
            marked = one["metadata"].get("deletionGracePeriodSeconds")
            if marked is not None and marked <= grace:
                return one
            return self.merge(
                plural,
                namespace,
                name,
                {"metadata": {"deletionTimestamp": now(), "deletionGracePeriodSeconds": grace}},
            )

    def remove(self, plural: str, namespace: str, name: str) -> None:
        """Remove an object for good, and what it owns, as the garbage collector does."""
        with self.changed:
            one = self._objects.pop((plural, namespace, name), None)
            if one is None:
                return
            self._revision += 1
            gone = copy.deepcopy(one)
            gone["metadata"]["resourceVersion"] = str(self._revision)
            self._tell(Event(self._revision, "DELETED", plural, one, gone))
            for (kind, space, other), owned in tuple(self._objects.items()):
                owners = owned["metadata"].get("ownerReferences") or ()
                if any(owner["uid"] == one["metadata"]["uid"] for owner in owners):
                    self.delete(kind, space, other, {})

    # -- many ----------------------------------------------------------------------------------------------------

    def select(self, selection: Selection) -> tuple[list[Json], int]:
        """Return the selected objects, and the revision at which they are so."""
        with self.changed:
            kept = [one for (plural, _, _), one in self._objects.items() if plural == selection.plural]
            return [copy.deepcopy(one) for one in kept if selection.has(one)], self._revision

    def everything(self, but: str) -> list[Json]:
        """Return all objects that are not of a kind."""
        with self.changed:
            return [copy.deepcopy(one) for (plural, _, _), one in self._objects.items() if plural != but]

    def after(self, revision: int) -> tuple[list[Event], int]:
        """Return what has happened since a revision, and the newest one."""
        with self.changed:
            return [event for event in self._events if event.revision > revision], self._revision

    # ------------------------------------------------------------------------------------------------------------

    def _store(self, kind: str, plural: str, one: Json) -> Json:
        metadata = one["metadata"]
        key = (plural, metadata["namespace"], metadata["name"])
        before = self._objects.get(key)
        self._revision += 1
        metadata["resourceVersion"] = str(self._revision)
        self._objects[key] = one
        self._tell(Event(self._revision, kind, plural, before, copy.deepcopy(one)))
        return copy.deepcopy(one)

    def _tell(self, event: Event) -> None:
        self._events.append(event)
        self.changed.notify_all()


@dataclass(slots=True, kw_only=True)
class Request:
    """One that was answered."""

    user: str
    verb: str
    what: str
    code: int


@dataclass(slots=True)
class ApiServer:
    """The server; `address` is where clients on this machine reach it.

    Args:
        host: an address of this machine's loopback network, on which port 443 is free.
    """

    host: str
    objects: Objects = field(default_factory=Objects)
    requests: list[Request] = field(default_factory=list)
    """All that was asked."""

    certificate: str = ""
    """The authority to trust, as PEM."""

    read_log: Callable[[str], str] = lambda uid: ""
    """The kubelet's: what the container of a pod has written."""

    _tokens: dict[str, str] = field(default_factory=dict, repr=False)
    _server: ThreadingHTTPServer | None = None

    @property
    def address(self) -> str:
        """For `--master k8s://…` and kubeconfig files."""
        return f"https://{self.host}:{PORT}"

    def start(self, folder: Path) -> None:
        """Answer from now on.

        Args:
            folder: for the certificate's files.
        """
        trusted = authority("kubernetes")
        own = trusted.sign("kube-apiserver", self.host, "kubernetes.default.svc")
        self.certificate = trusted.pem
        (folder / "server.pem").write_text(own.key + own.certificate)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(folder / "server.pem")
        api = self

        class Handler(_Handler):
            server_of = api

        self._server = _Server((self.host, PORT), Handler)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True, do_handshake_on_connect=False)
        threading.Thread(target=self._server.serve_forever, name="API server", daemon=True).start()

    def stop(self) -> None:
        """Answer no more."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()

    def token(self, user: str) -> str:
        """Return a token for a user, `system:serviceaccount:NAMESPACE:NAME` or `admin`."""
        token = secrets.token_urlsafe(24)
        self._tokens[token] = user
        return token

    def apply(self, manifest: str) -> None:
        """Create what a manifest holds, as an administrator; namespaces come by themselves."""
        for one in yaml.safe_load_all(manifest):
            if one and one["kind"] != "Namespace":
                (plural,) = (name for name, (_, kind) in _KINDS.items() if kind == one["kind"])
                self.objects.create(plural, one["metadata"].get("namespace", "default"), one)

    def secret(self, namespace: str, name: str, values: Mapping[str, str]) -> None:
        """Create a secret, as `kubectl create secret generic` does."""
        data = {key: base64.b64encode(value.encode()).decode() for key, value in values.items()}
        self.objects.create("secrets", namespace, {"metadata": {"name": name}, "type": "Opaque", "data": data})

    def refused(self) -> list[Request]:
        """Return the requests that a role or a missing token refused."""
        return [one for one in self.requests if one.code in (401, 403)]

    def user_of(self, header: str) -> str:
        """Return whose token a request has, or refuse."""
        user = self._tokens.get(header.removeprefix("Bearer ").strip())
        if user is None:
            raise Refusal(401, "Unauthorized", "Unauthorized")
        return user

    def require(self, user: str, verb: str, namespace: str, plural: str, name: str) -> None:
        """Refuse what no role of the user's allows."""
        if user == ADMIN or self._allows(user, verb, namespace, plural):
            return
        group = _KINDS[plural.partition("/")[0]][0]
        named = f' "{name}"' if name else ""
        raise Refusal(
            403,
            "Forbidden",
            f'{plural}{named} is forbidden: User "{user}" cannot {verb} resource "{plural}" in API group "{group}" in '
            f'the namespace "{namespace}"',
        )

    def _allows(self, user: str, verb: str, namespace: str, resource: str) -> bool:
        bindings, _ = self.objects.select(Selection(namespace, "rolebindings"))
        for binding in bindings:
            named = {
                f"system:serviceaccount:{one.get('namespace', namespace)}:{one['name']}"
                if one["kind"] == "ServiceAccount"
                else one["name"]
                for one in binding.get("subjects", ())
            }
            if user not in named:
                continue
            for rule in self.objects.get("roles", namespace, binding["roleRef"]["name"])["rules"]:
                group = _KINDS[resource.partition("/")[0]][0]
                asked = ((group, "apiGroups"), (resource, "resources"), (verb, "verbs"))
                if all({value, "*"} & set(rule[key]) for value, key in asked):
                    return True
        return False


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing of clients that hang up, as those of killed drivers do."""


class _Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    server_of: ApiServer

    def do_GET(self) -> None:
        self._answer()

    do_POST = do_PUT = do_PATCH = do_DELETE = do_GET

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's name
        """Keep quiet; `ApiServer.requests` has them."""

    def _answer(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length) if length else b""
        url = urlsplit(self.path)
        query = {key: values[-1] for key, values in parse_qs(url.query).items()}
        user, verb = "", self.command.lower()
        try:
            user = self.server_of.user_of(self.headers.get("Authorization", ""))
            if url.path == "/version":
                self._send(200, {"major": "1", "minor": "34", "gitVersion": "v1.34.0"})
                return
            matched = _PATH.fullmatch(url.path)
            if matched is None or _KINDS.get(matched["plural"], ("?", ""))[0] != (matched["group"] or ""):
                raise Refusal(404, "NotFound", "the server could not find the requested resource")
            verb = self._verb(query, matched["name"])
            self._do(_Call(user, verb, matched, query, body, self.headers.get("Content-Type", "")))
        except Refusal as refusal:
            self._note(user, verb, url.path, refusal.code)
            self._send(refusal.code, refusal.status())

    def _verb(self, query: Mapping[str, str], name: str | None) -> str:
        if self.command == "GET":
            if query.get("watch", "").lower() in ("true", "1"):
                return "watch"
            return "get" if name else "list"
        if self.command == "DELETE":
            return "delete" if name else "deletecollection"
        return {"POST": "create", "PUT": "update", "PATCH": "patch"}[self.command]

    def _do(self, call: _Call) -> None:
        api, resource = self.server_of, call.plural + (f"/{call.part}" if call.part else "")
        api.require(call.user, call.verb, call.namespace, resource, call.name)
        if call.part == "log":
            text = api.read_log(api.objects.get("pods", call.namespace, call.name)["metadata"]["uid"])
            self._note(call.user, call.verb, self.path, 200)
            self._send_bytes(200, text.encode(), "text/plain")
            return
        if call.verb == "watch":
            if self.headers.get("Upgrade", "").lower() == "websocket":
                raise Refusal(503, "ServiceUnavailable", "watches are answered over HTTP")
            self._note(call.user, call.verb, self.path, 200)
            self._watch(call)
            return
        code, answer = _performed(api, call)
        self._note(call.user, call.verb, self.path, code)
        self._send(code, answer)

    def _watch(self, call: _Call) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        try:
            for event in _watched(self.server_of.objects, call):
                line = json.dumps(event).encode() + b"\n"
                self.wfile.write(f"{len(line):x}\r\n".encode() + line + b"\r\n")
                self.wfile.flush()
            self.wfile.write(b"0\r\n\r\n")
        except OSError:
            self.close_connection = True

    def _note(self, user: str, verb: str, what: str, code: int) -> None:
        self.server_of.requests.append(Request(user=user, verb=verb, what=what, code=code))

    def _send(self, code: int, answer: Json) -> None:
        self._send_bytes(code, json.dumps(answer).encode(), "application/json")

    def _send_bytes(self, code: int, body: bytes, kind: str) -> None:
        try:
            self.send_response(code)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
        except OSError:
            self.close_connection = True


class _Call:
    """What one request asks for."""

    def __init__(
        self, user: str, verb: str, path: re.Match[str], query: Mapping[str, str], body: bytes, content: str
    ) -> None:
        self.user, self.verb, self.query, self.content = user, verb, query, content
        self.namespace, self.plural = path["namespace"], path["plural"]
        self.name, self.part = path["name"] or "", path["part"] or ""
        # Every JSON is YAML, and a patch that is applied comes as the latter.
        self.body: Json = (yaml.safe_load(body) or {}) if body else {}

    @property
    def selection(self) -> Selection:
        """Of a list, a watch, or the deletion of many."""
        name = f"metadata.name={self.name}" if self.name else ""
        fields = ",".join(filter(None, (name, self.query.get("fieldSelector", ""))))
        return Selection(self.namespace, self.plural, self.query.get("labelSelector", ""), fields)

    def options(self) -> Json:
        """Of a deletion: those of the body, or of the address."""
        grace = self.query.get("gracePeriodSeconds")
        return {**({} if grace is None else {"gracePeriodSeconds": int(grace)}), **self.body}


def _performed(api: ApiServer, call: _Call) -> tuple[int, Json]:
    objects, place = api.objects, (call.plural, call.namespace)
    match call.verb:
        case "get":
            return 200, objects.get(*place, call.name)
        case "list":
            return 200, _listed(objects, call.selection)
        case "create":
            return 201, objects.create(*place, call.body)
        case "update":
            return 200, objects.replace(*place, call.name, call.body)
        case "patch":
            return _patched(api, call)
        case "delete":
            return 200, objects.delete(*place, call.name, call.options())
        case _:
            found = _listed(objects, call.selection)
            for one in found["items"]:
                objects.delete(*place, one["metadata"]["name"], call.options())
            return 200, found


def _listed(objects: Objects, selection: Selection) -> Json:
    items, revision = objects.select(selection)
    group, kind = _KINDS[selection.plural]
    version, metadata = f"{group}/v1" if group else "v1", {"resourceVersion": str(revision)}
    return {"kind": f"{kind}List", "apiVersion": version, "metadata": metadata, "items": items}


def _patched(api: ApiServer, call: _Call) -> tuple[int, Json]:
    objects, place = api.objects, (call.plural, call.namespace)
    kind = call.content.partition(";")[0].strip()
    if kind == "application/apply-patch+yaml":
        try:
            objects.get(*place, call.name)
        except Refusal:
            # Who applies what is not there yet needs the right to create it, too.
            api.require(call.user, "create", call.namespace, call.plural, call.name)
            return 201, objects.create(*place, call.body)
        return 200, objects.merge(*place, call.name, call.body)
    if kind not in ("application/merge-patch+json", "application/strategic-merge-patch+json"):
        raise Refusal(415, "UnsupportedMediaType", f"the body of the request was in an unknown format: {kind}")
    return 200, objects.merge(*place, call.name, call.body)


def _watched(objects: Objects, call: _Call) -> Iterator[Json]:
    """Yield events until the watch's time is over."""
    selection, start = call.selection, call.query.get("resourceVersion", "")
    within = min(float(call.query.get("timeoutSeconds") or WATCH_WITHIN), WATCH_WITHIN)
    ends = time.monotonic() + within
    if start in ("", "0"):
        items, revision = objects.select(selection)
        yield from ({"type": "ADDED", "object": one} for one in items)
    else:
        revision = int(start)
    while (left := ends - time.monotonic()) > 0:
        events, newest = objects.after(revision)
        for event in events:
            if event.plural == selection.plural and (kind := _seen(selection, event)):
                yield {"type": kind, "object": event.after}
        revision = newest
        with objects.changed:
            if objects.after(revision)[1] == revision:
                objects.changed.wait(min(left, 1.0))


def _seen(selection: Selection, event: Event) -> str:
    """Return what an event is to one who watches a selection; empty: nothing."""
    before, after = selection.has(event.before), event.kind != "DELETED" and selection.has(event.after)
    return {(False, True): "ADDED", (True, True): "MODIFIED", (True, False): "DELETED"}.get((before, after), "")


def _selects(text: str, value_of: Callable[[str], str | None]) -> bool:
    for term in _TERM.finditer(text):
        found = value_of(term["key"])
        values = {one.strip() for one in (term["values"] or "").strip("()").split(",")}
        match term["op"]:
            case "=" | "==" | "in":
                held = found in values
            case "!=" | "notin":
                held = found not in values
            case _:
                held = (found is None) == bool(term["not"])
        if not held:
            return False
    return True


def _at(one: Json, path: str) -> str | None:
    found: Any = one
    for key in path.split("."):
        found = found.get(key) if isinstance(found, dict) else None
    return None if found is None else str(found)


def _merged(before: Json, patch: Json) -> Json:
    after = dict(before)
    for key, value in patch.items():
        if value is None:
            after.pop(key, None)
        elif isinstance(value, dict) and isinstance(after.get(key), dict):
            after[key] = _merged(after[key], value)
        else:
            after[key] = value
    return after


def now() -> str:
    """Return the time as the server writes it."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def kubeconfig(api: ApiServer, namespace: str, token: str) -> str:
    """Return a client's configuration, with its token."""
    trusted = base64.b64encode(api.certificate.encode()).decode()
    cluster = {"server": api.address, "certificate-authority-data": trusted}
    entries: Mapping[str, Sequence[Json]] = {
        "clusters": [{"name": "double", "cluster": cluster}],
        "users": [{"name": "airflow", "user": {"token": token}}],
        "contexts": [{"name": "kcr", "context": {"cluster": "double", "user": "airflow", "namespace": namespace}}],
    }
    return yaml.safe_dump({"apiVersion": "v1", "kind": "Config", "current-context": "kcr", **entries})
