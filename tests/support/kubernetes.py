"""A Kubernetes API server on this machine, as far as Spark's client needs one.

What Spark speaks to is this double, over TLS; Spark's own client is the real one. It is stubborn in what a page of ours
promises: tokens, and the roles that its manifest grants. `tests.support.kubelet` is the node.

Left out, and so not tried by any test: watches over WebSocket (the client is refused and falls back to HTTP),
conflicts, history that is forgotten, quotas, admission, and every kind that Spark doesn't ask for.
"""

from __future__ import annotations

import base64
import json
import re
import secrets
import ssl
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias
from urllib.parse import parse_qs, urlsplit

import yaml

from tests.support.certificates import authority

Json: TypeAlias = dict[str, Any]
Place: TypeAlias = tuple[str, str, str]
"""Of an object: the plural of its kind, its namespace and its name."""

WATCH_WITHIN: Final = 20.0
"""Seconds after which a watch ends; the real server's limit is a random one of 30 to 60 minutes."""

PORT: Final = 443
"""Where pods look for the server, at the name `kubernetes.default.svc`."""

GRACE: Final = 30
"""Seconds between SIGTERM and SIGKILL where neither pod nor caller says."""

_RBAC: Final = "rbac.authorization.k8s.io"
_KINDS: Final = {
    **{f"{kind.lower()}s": ("", kind) for kind in ("Pod", "ConfigMap", "Secret", "Service", "ServiceAccount")},
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


class Request(NamedTuple):
    """One that was answered."""

    user: str
    verb: str
    what: str
    code: int


@dataclass(slots=True)
class ApiServer:
    """The server, with what it stores: an object is never changed, but replaced.

    Args:
        host: an address of this machine's loopback network, on which the port is free.
        port: another one serves where there are no pods.
    """

    host: str
    port: int = PORT
    certificate: str = ""
    """The authority to trust, as PEM."""

    requests: list[Request] = field(default_factory=list)
    objects: dict[Place, Json] = field(default_factory=dict)
    changes: list[tuple[str, Place, Json]] = field(default_factory=list)
    """What has happened to which object; a revision is how much has."""

    logs: Callable[[str], str] = lambda uid: ""
    """The kubelet's: what a pod has written, by its uid."""

    changed: threading.Condition = field(default_factory=lambda: threading.Condition(threading.RLock()))
    _tokens: dict[str, str] = field(default_factory=dict, repr=False)
    _server: ThreadingHTTPServer | None = None

    @property
    def address(self) -> str:
        """For `--master k8s://…` and kubeconfig files."""
        return f"https://{self.host}:{self.port}"

    def start(self, folder: Path) -> None:
        """Answer from now on; the folder is for the certificate's files."""
        trusted = authority("kubernetes")
        own = trusted.sign("kube-apiserver", self.host, "kubernetes.default.svc")
        self.certificate = trusted.pem
        (folder / "server.pem").write_text(own.key + own.certificate)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(folder / "server.pem")
        self._server = _Server((self.host, self.port), partial(_Handler, self))
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True, do_handshake_on_connect=False)
        threading.Thread(target=self._server.serve_forever, name="API server", daemon=True).start()

    def stop(self) -> None:
        """Answer no more."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()

    # -- what is stored ------------------------------------------------------------------------------------------

    def get(self, place: Place) -> Json:
        """Return an object, or refuse."""
        found = self.objects.get(place)
        if found is None:
            raise Refusal(404, "NotFound", f'{place[0]} "{place[2]}" not found')
        return found

    def select(self, plural: str, namespace: str = "", labels: str = "", fields: str = "") -> list[Json]:
        """Return the objects of a kind that have these labels and fields, in a namespace or in all of them."""
        with self.changed:
            kept = [
                one for (kind, space, _), one in self.objects.items() if kind == plural and namespace in ("", space)
            ]
        return [one for one in kept if _is_selected(one, labels, fields)]

    def create(self, plural: str, namespace: str, given: Json) -> Json:
        """Store a new object."""
        place = (plural, namespace, given["metadata"]["name"])
        group, kind = _KINDS[plural]
        one = _merged(
            given,
            {
                "kind": kind,
                "apiVersion": f"{group}/v1" if group else "v1",
                "metadata": {"namespace": namespace, "uid": str(uuid.uuid4()), "creationTimestamp": now()},
            },
        )
        if plural == "pods":
            defaults = {"serviceAccountName": "default", "terminationGracePeriodSeconds": GRACE}
            one |= {"spec": defaults | one["spec"], "status": {"phase": "Pending", "conditions": []}}
        with self.changed:
            if place in self.objects:
                raise Refusal(409, "AlreadyExists", f'{plural} "{place[2]}" already exists')
            return self._store("ADDED", place, one)

    def merge(self, place: Place, patch: Json) -> Json:
        """Change an object as a merge patch says; the kubelet's reports too."""
        with self.changed:
            return self._store("MODIFIED", place, _merged(self.get(place), patch))

    def delete(self, place: Place, options: Json) -> Json:
        """Delete an object; a pod is only marked, and its kubelet removes it when its containers are gone."""
        with self.changed:
            one = self.get(place)
            if place[0] != "pods":
                self.remove(place)
                return one
            grace = options.get("gracePeriodSeconds")
            grace = one["spec"]["terminationGracePeriodSeconds"] if grace is None else grace
            marked = one["metadata"].get("deletionGracePeriodSeconds")
            if marked is not None and marked <= grace:
                return one
            return self.merge(place, {"metadata": {"deletionTimestamp": now(), "deletionGracePeriodSeconds": grace}})

    def remove(self, place: Place) -> None:
        """Remove an object for good, and what it owns, as the garbage collector does."""
        with self.changed:
            one = self.objects.get(place)
            if one is None:
                return
            self._store("DELETED", place, one)
            for other, owned in tuple(self.objects.items()):
                owners = owned["metadata"].get("ownerReferences") or ()
                if any(owner["uid"] == one["metadata"]["uid"] for owner in owners):
                    self.delete(other, {})

    def _store(self, kind: str, place: Place, one: Json) -> Json:
        stored = _merged(one, {"metadata": {"resourceVersion": str(len(self.changes) + 1)}})
        if kind == "DELETED":
            del self.objects[place]
        else:
            self.objects[place] = stored
        self.changes.append((kind, place, stored))
        self.changed.notify_all()
        return stored

    # -- as an administrator -------------------------------------------------------------------------------------

    def token(self, namespace: str, account: str) -> str:
        """Return a token for a service account."""
        token = secrets.token_urlsafe(24)
        self._tokens[token] = f"system:serviceaccount:{namespace}:{account}"
        return token

    def client_configuration(self, folder: Path, namespace: str, account: str) -> Path:
        """Write a kubeconfig file for a service account."""
        file, trusted = folder / f"kubeconfig-{account}", base64.b64encode(self.certificate.encode()).decode()
        cluster = {"server": self.address, "certificate-authority-data": trusted}
        found = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "kcr",
            "clusters": [{"name": "double", "cluster": cluster}],
            "users": [{"name": "airflow", "user": {"token": self.token(namespace, account)}}],
            "contexts": [{"name": "kcr", "context": {"cluster": "double", "user": "airflow", "namespace": namespace}}],
        }
        file.write_text(json.dumps(found))  # every JSON is YAML
        return file

    def apply(self, manifest: str) -> None:
        """Create what a manifest holds; namespaces come by themselves."""
        for one in yaml.safe_load_all(manifest):
            if one and one["kind"] != "Namespace":
                (plural,) = (name for name, (_, kind) in _KINDS.items() if kind == one["kind"])
                self.create(plural, one["metadata"].get("namespace", "default"), one)

    def secret(self, namespace: str, name: str, values: Mapping[str, str]) -> None:
        """Create a secret, as `kubectl create secret generic` does."""
        data = {key: base64.b64encode(value.encode()).decode() for key, value in values.items()}
        self.create("secrets", namespace, {"metadata": {"name": name}, "type": "Opaque", "data": data})

    def refused(self) -> list[Request]:
        """Return the requests that a role or a missing token refused."""
        return [one for one in self.requests if one.code in (401, 403)]

    def user_of(self, header: str) -> str:
        """Return whose token a request has, or refuse."""
        user = self._tokens.get(header.removeprefix("Bearer ").strip())
        if user is None:
            raise Refusal(401, "Unauthorized", "Unauthorized")
        return user

    def require(self, user: str, verb: str, namespace: str, resource: str) -> None:
        """Refuse what no role of the user's allows."""
        group = _KINDS[resource.partition("/")[0]][0]
        asked = ((group, "apiGroups"), (resource, "resources"), (verb, "verbs"))
        for binding in self.select("rolebindings", namespace):
            named = (one for one in binding.get("subjects", ()) if one["kind"] == "ServiceAccount")
            if user in {f"system:serviceaccount:{one.get('namespace', namespace)}:{one['name']}" for one in named}:
                for rule in self.get(("roles", namespace, binding["roleRef"]["name"]))["rules"]:
                    if all({value, "*"} & set(rule[key]) for value, key in asked):
                        return
        told = (
            f'User "{user}" cannot {verb} resource "{resource}" in API group "{group}" in the namespace "{namespace}"'
        )
        raise Refusal(403, "Forbidden", f"{resource} is forbidden: {told}")


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing of clients that hang up, as those of killed drivers do."""


class _Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"

    def __init__(self, api: ApiServer, *args: Any) -> None:  # noqa: ANN401 (the server's own)
        self.api = api
        super().__init__(*args)

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        query = {key: values[-1] for key, values in parse_qs(url.query).items()}
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        user, verb, code = "", self.command.lower(), 200
        try:
            user = self.api.user_of(self.headers.get("Authorization", ""))
            if url.path == "/version":
                self._send(200, {"major": "1", "minor": "34", "gitVersion": "v1.34.0"})
                return
            path = _PATH.fullmatch(url.path)
            if path is None or _KINDS.get(path["plural"], ("?", ""))[0] != (path["group"] or ""):
                raise Refusal(404, "NotFound", "the server could not find the requested resource")
            verb = self._verb(query, path["name"])
            self.api.require(user, verb, path["namespace"], "/".join(filter(None, (path["plural"], path["part"]))))
            if path["part"] == "log":
                pod = self.api.get(("pods", path["namespace"], path["name"]))
                self._write(200, "text/plain", _tail(self.api.logs(pod["metadata"]["uid"]), query))
                return
            # Every JSON is YAML, and a patch that is applied comes as the latter.
            self._do(user, verb, path, query, yaml.safe_load(body) or {} if body else {})
        except Refusal as refusal:
            code = refusal.code
            told = {"status": "Failure", "message": refusal.message, "reason": refusal.reason, "code": code}
            self._send(code, {"kind": "Status", "apiVersion": "v1", "metadata": {}, **told})
        except OSError:
            self.close_connection = True
        finally:
            self.api.requests.append(Request(user, verb, self.path, code))

    do_POST = do_PUT = do_PATCH = do_DELETE = do_GET

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's name
        """Keep quiet; `ApiServer.requests` has them."""

    def _verb(self, query: Mapping[str, str], name: str | None) -> str:
        if self.command == "GET":
            if query.get("watch", "").lower() in ("true", "1"):
                return "watch"
            return "get" if name else "list"
        if self.command == "DELETE":
            return "delete" if name else "deletecollection"
        return {"POST": "create", "PUT": "update", "PATCH": "patch"}[self.command]

    def _do(self, user: str, verb: str, path: re.Match[str], query: Mapping[str, str], body: Json) -> None:
        api, plural, namespace = self.api, path["plural"], path["namespace"]
        place = (plural, namespace, path["name"] or "")
        fields = ",".join(filter(None, (path["name"] and f"metadata.name={path['name']}", query.get("fieldSelector"))))
        select = partial(api.select, plural, namespace, query.get("labelSelector", ""), fields)
        grace = {"gracePeriodSeconds": int(query["gracePeriodSeconds"])} if "gracePeriodSeconds" in query else {}
        match verb:
            case "get":
                self._send(200, api.get(place))
            case "list":
                self._send(200, self._listed(plural, select()))
            case "watch":
                if self.headers.get("Upgrade", "").lower() == "websocket":
                    raise Refusal(503, "ServiceUnavailable", "watches are answered over HTTP")
                self._watch(plural, namespace, query, fields)
            case "create":
                self._send(201, api.create(plural, namespace, body))
            case "patch" if "apply-patch" in self.headers.get("Content-Type", "") and place not in api.objects:
                # Who applies what is not there yet needs the right to create it, too.
                api.require(user, "create", namespace, plural)
                self._send(201, api.create(plural, namespace, body))
            case "patch" | "update":
                self._send(200, api.merge(place, body))
            case "delete":
                self._send(200, api.delete(place, {**grace, **body}))
            case _:
                found = select()
                for one in found:
                    api.delete((plural, namespace, one["metadata"]["name"]), {**grace, **body})
                self._send(200, self._listed(plural, found))

    def _listed(self, plural: str, items: list[Json]) -> Json:
        group, kind = _KINDS[plural]
        version, metadata = f"{group}/v1" if group else "v1", {"resourceVersion": str(len(self.api.changes))}
        return {"kind": f"{kind}List", "apiVersion": version, "metadata": metadata, "items": items}

    def _watch(self, plural: str, namespace: str, query: Mapping[str, str], fields: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for kind, one in self._changes(plural, namespace, query, fields):
            line = json.dumps({"type": kind, "object": one}).encode() + b"\n"
            self.wfile.write(f"{len(line):x}\r\n".encode() + line + b"\r\n")
            self.wfile.flush()
        self.wfile.write(b"0\r\n\r\n")

    def _changes(
        self, plural: str, namespace: str, query: Mapping[str, str], fields: str
    ) -> Iterator[tuple[str, Json]]:
        """Yield what happens to the selected objects until the watch's time is over."""
        api, labels, start = self.api, query.get("labelSelector", ""), query.get("resourceVersion", "")
        ends = time.monotonic() + min(float(query.get("timeoutSeconds") or WATCH_WITHIN), WATCH_WITHIN)
        with api.changed:
            seen = int(start or 0) or len(api.changes)
            there = [] if int(start or 0) else api.select(plural, namespace, labels, fields)
        yield from (("ADDED", one) for one in there)
        while (left := ends - time.monotonic()) > 0:
            with api.changed:
                api.changed.wait_for(lambda: len(api.changes) > seen, min(left, 1.0))  # noqa: B023 (called here)
                fresh = api.changes[seen:]
            seen += len(fresh)
            for kind, (changed, space, _), one in fresh:
                if (changed, space) == (plural, namespace) and _is_selected(one, labels, fields):
                    yield kind, one

    def _send(self, code: int, answer: Json) -> None:
        self._write(code, "application/json", json.dumps(answer))

    def _write(self, code: int, kind: str, text: str) -> None:
        body = text.encode()
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def _tail(text: str, query: Mapping[str, str]) -> str:
    lines = text.splitlines(keepends=True)
    return "".join(lines[-int(query.get("tailLines", len(lines) or 1)) :])


def _is_selected(one: Json, labels: str, fields: str) -> bool:
    owned: Mapping[str, str] = one["metadata"].get("labels") or {}
    return _selects(labels, owned.get) and _selects(fields, partial(_at, one))


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
