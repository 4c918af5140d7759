"""A browser, as far as the crowd needs one."""

import http.client
from collections.abc import Mapping
from contextlib import closing
from http.cookies import SimpleCookie
from urllib.parse import urlencode, urlsplit

TIMEOUT = 30.0  # seconds for an answer


class Browser:
    """A visitor with cookies of its own."""

    def __init__(self, site: str) -> None:
        self._host = urlsplit(site).netloc
        self._cookies: dict[str, str] = {}

    def ask(self, method: str, path: str, fields: Mapping[str, object] | None = None) -> int:
        """The status of the whole answer."""
        headers = {"Cookie": "; ".join(f"{name}={value}" for name, value in self._cookies.items())}
        body = None
        if fields is not None:
            headers["Content-Type"] = "application/x-www-form-urlencoded"
            token = {"csrfmiddlewaretoken": self._cookies.get("csrftoken", "")}
            body = urlencode({**token, **fields})
        with closing(http.client.HTTPConnection(self._host, timeout=TIMEOUT)) as connection:
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            response.read()
        for header in response.headers.get_all("Set-Cookie", []):
            self._cookies |= {key: morsel.value for key, morsel in SimpleCookie(header).items()}
        return response.status
