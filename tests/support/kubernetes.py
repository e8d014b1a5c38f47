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
from itertools import count
from pathlib import Path
from typing import Any, ClassVar, Final, NamedTuple, TypeAlias
from urllib.parse import parse_qs, urlsplit

import yaml

from tests.support import endpoint
from tests.support.certificates import authority
from tests.support.endpoint import Answer, Endpoint

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
    """The server, with what it stores: an object is never changed, but replaced."""

    host: ClassVar[str] = "127.0.0.1"
    certificate: str = ""
    """The authority to trust, as PEM."""

    requests: list[Request] = field(default_factory=list)
    objects: dict[Place, Json] = field(default_factory=dict)
    revisions: Iterator[int] = field(default_factory=lambda: count(1))
    logs: Callable[[str], str] = lambda uid: ""
    """The kubelet's: what a pod has written, by its uid."""

    lock: threading.RLock = field(default_factory=threading.RLock)
    _tokens: dict[str, str] = field(default_factory=dict, repr=False)
    _server: Endpoint | None = None

    @property
    def port(self) -> int:
        """Where it answers."""
        assert self._server is not None
        return int(self._server.server_address[1])

    @property
    def address(self) -> str:
        """For `--master k8s://…` and kubeconfig files."""
        return f"https://{self.host}:{self.port}"

    def start(self, folder: Path) -> None:
        """Answer from now on; the folder is for the certificate's files."""
        trusted = authority("kubernetes")
        own = trusted.sign("kube-apiserver")
        self.certificate = trusted.pem
        (folder / "server.pem").write_text(own.key + own.certificate)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(folder / "server.pem")
        self._server = Endpoint(self._answer)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True, do_handshake_on_connect=False)
        self._server.__enter__()

    def stop(self) -> None:
        """Answer no more."""
        if self._server is not None:
            self._server.__exit__()

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

    # -- over HTTP -----------------------------------------------------------------------------------------------

    def _answer(self, request: endpoint.Request) -> Answer:
        url = urlsplit(request.path)
        query = {key: values[-1] for key, values in parse_qs(url.query).items()}
        user, verb, code = "", request.method.lower(), 200
        try:
            user = self.user_of(request.headers.get("Authorization", ""))
            if url.path == "/version":
                return _json(200, {"major": "1", "minor": "34", "gitVersion": "v1.34.0"})
            path = _PATH.fullmatch(url.path)
            if path is None or _KINDS.get(path["plural"], ("?", ""))[0] != (path["group"] or ""):
                raise Refusal(404, "NotFound", "the server could not find the requested resource")
            verb = _verb(request.method, query, path["name"])
            self.require(user, verb, path["namespace"], "/".join(filter(None, (path["plural"], path["part"]))))
            if path["part"] == "log":
                pod = self.get(("pods", path["namespace"], path["name"]))
                return Answer(200, _tail(self.logs(pod["metadata"]["uid"]), query).encode(), "text/plain")
            return self._done(user, verb, path, query, request)
        except Refusal as refusal:
            code = refusal.code
            told = {"status": "Failure", "message": refusal.message, "reason": refusal.reason, "code": code}
            return _json(code, {"kind": "Status", "apiVersion": "v1", "metadata": {}, **told})
        finally:
            self.requests.append(Request(user, verb, request.path, code))

    def _done(
        self, user: str, verb: str, path: re.Match[str], query: Mapping[str, str], request: endpoint.Request
    ) -> Answer:
        plural, namespace = path["plural"], path["namespace"]
        place = (plural, namespace, path["name"] or "")
        # Every JSON is YAML, and a patch that is applied comes as the latter.
        body = yaml.safe_load(request.body) or {} if request.body else {}
        match verb:
            case "get":
                return _json(200, self.get(place))
            case "list":
                found = self.select(plural, namespace, query.get("labelSelector", ""))
                if "fieldSelector" in query:
                    assert query["fieldSelector"] == "status.phase!=Succeeded"
                    found = [one for one in found if one.get("status", {}).get("phase") != "Succeeded"]
                return _json(200, self._listed(plural, found))
            case "create":
                return _json(201, self.create(plural, namespace, body))
            case "patch" if "apply-patch" in request.headers.get("Content-Type", "") and place not in self.objects:
                # Who applies what is not there yet needs the right to create it, too.
                self.require(user, "create", namespace, plural)
                return _json(201, self.create(plural, namespace, body))
            case "patch" | "update":
                return _json(200, self.merge(place, body))
            case "delete":
                return _json(200, self.delete(place))
            case _:
                raise Refusal(405, "MethodNotAllowed", f"this double answers no {verb}")

    def _listed(self, plural: str, items: list[Json]) -> Json:
        group, kind = _KINDS[plural]
        version, metadata = f"{group}/v1" if group else "v1", {"resourceVersion": str(next(self.revisions))}
        return {"kind": f"{kind}List", "apiVersion": version, "metadata": metadata, "items": items}

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


def _verb(method: str, query: Mapping[str, str], name: str | None) -> str:
    if method == "GET":
        if "watch" in query:
            return "watch"
        return "get" if name else "list"
    if method == "DELETE":
        return "delete" if name else "deletecollection"
    return {"POST": "create", "PUT": "update", "PATCH": "patch"}[method]


def _json(code: int, answer: Json) -> Answer:
    return Answer(code, json.dumps(answer).encode())


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
