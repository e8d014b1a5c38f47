"""A Kubernetes API server on this machine, as far as Spark's client and the package's own need one.

What they speak to is this double, over TLS. It is stubborn in what a page of ours promises: tokens, and the roles that
its manifest grants. It has no node: pods stay as they are created, unless a test reports otherwise.

Left out, and so not tried by any test with it: watches, conflicts, quotas, admission, and every kind that Spark doesn't
ask for. `tests/kubernetes` has a real one.
"""

from __future__ import annotations

import base64
import json
import re
import secrets
import ssl
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias
from urllib.parse import parse_qs, urlsplit

import yaml

from tests.support.certificates import authority

Json: TypeAlias = dict[str, Any]
Place: TypeAlias = tuple[str, str, str]
"""Of an object: the plural of its kind, its namespace and its name."""

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
        port: a free one.
    """

    port: int
    host: str = "127.0.0.1"
    certificate: str = ""
    """The authority to trust, as PEM."""

    requests: list[Request] = field(default_factory=list)
    objects: dict[Place, Json] = field(default_factory=dict)
    revisions: Iterator[int] = field(default_factory=lambda: count(1))
    logs: Callable[[str], str] = lambda uid: ""
    """The kubelet's: what a pod has written, by its uid."""

    lock: threading.RLock = field(default_factory=threading.RLock)
    _tokens: dict[str, str] = field(default_factory=dict, repr=False)
    _server: ThreadingHTTPServer | None = None

    @property
    def address(self) -> str:
        """For `--master k8s://…` and kubeconfig files."""
        return f"https://{self.host}:{self.port}"

    def start(self, folder: Path) -> None:
        """Answer from now on; the folder is for the certificate's files."""
        trusted = authority("kubernetes")
        own = trusted.sign("kube-apiserver", self.host)
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

    def select(self, plural: str, namespace: str, labels: str = "") -> list[Json]:
        """Return the objects of a kind in a namespace that have these labels."""
        wanted = [term.partition("=") for term in labels.split(",") if term]
        with self.lock:
            kept = [one for (kind, space, _), one in self.objects.items() if (kind, space) == (plural, namespace)]
        return [one for one in kept if all(_has(one["metadata"].get("labels") or {}, *term) for term in wanted)]

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
            one["status"] = {"phase": "Pending", "conditions": []}
        with self.lock:
            if place in self.objects:
                raise Refusal(409, "AlreadyExists", f'{plural} "{place[2]}" already exists')
            return self._store(place, one)

    def merge(self, place: Place, patch: Json) -> Json:
        """Change an object as a merge patch says; the kubelet's reports too."""
        with self.lock:
            return self._store(place, _merged(self.get(place), patch))

    def delete(self, place: Place) -> Json:
        """Delete an object; a pod is only marked, and its kubelet would remove it when its containers are gone."""
        if place[0] == "pods":
            return self.merge(place, {"metadata": {"deletionTimestamp": now()}})
        with self.lock:
            self.get(place)
            return self.objects.pop(place)

    def remove(self, place: Place) -> None:
        """Remove an object for good."""
        with self.lock:
            del self.objects[place]

    def _store(self, place: Place, one: Json) -> Json:
        self.objects[place] = _merged(one, {"metadata": {"resourceVersion": str(next(self.revisions))}})
        return self.objects[place]

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
            if "watch" in query:
                return "watch"
            return "get" if name else "list"
        if self.command == "DELETE":
            return "delete" if name else "deletecollection"
        return {"POST": "create", "PUT": "update", "PATCH": "patch"}[self.command]

    def _do(self, user: str, verb: str, path: re.Match[str], query: Mapping[str, str], body: Json) -> None:
        api, plural, namespace = self.api, path["plural"], path["namespace"]
        place = (plural, namespace, path["name"] or "")
        match verb:
            case "get":
                self._send(200, api.get(place))
            case "list":
                found = api.select(plural, namespace, query.get("labelSelector", ""))
                if "fieldSelector" in query:
                    assert query["fieldSelector"] == "status.phase!=Succeeded"
                    found = [one for one in found if one.get("status", {}).get("phase") != "Succeeded"]
                self._send(200, self._listed(plural, found))
            case "create":
                self._send(201, api.create(plural, namespace, body))
            case "patch" if "apply-patch" in self.headers.get("Content-Type", "") and place not in api.objects:
                # Who applies what is not there yet needs the right to create it, too.
                api.require(user, "create", namespace, plural)
                self._send(201, api.create(plural, namespace, body))
            case "patch" | "update":
                self._send(200, api.merge(place, body))
            case "delete":
                self._send(200, api.delete(place))
            case _:
                raise Refusal(405, "MethodNotAllowed", f"this double answers no {verb}")

    def _listed(self, plural: str, items: list[Json]) -> Json:
        group, kind = _KINDS[plural]
        version, metadata = f"{group}/v1" if group else "v1", {"resourceVersion": str(next(self.api.revisions))}
        return {"kind": f"{kind}List", "apiVersion": version, "metadata": metadata, "items": items}

    def _send(self, code: int, answer: Json) -> None:
        self._write(code, "application/json", json.dumps(answer))

    def _write(self, code: int, kind: str, text: str) -> None:
        body = text.encode()
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def _has(labels: Mapping[str, str], name: str, equals: str, value: str) -> bool:
    return name in labels and (not equals or labels[name] == value)


def _tail(text: str, query: Mapping[str, str]) -> str:
    lines = text.splitlines(keepends=True)
    return "".join(lines[-int(query.get("tailLines", len(lines) or 1)) :])


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
