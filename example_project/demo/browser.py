"""Send requests to the site as a browser does."""

import http.client
from collections.abc import Mapping
from contextlib import closing
from http.cookies import SimpleCookie
from urllib.parse import urlencode, urlsplit

TIMEOUT = 30.0  # seconds for a response


class Browser:
    """A visitor with its own cookies."""

    def __init__(self, site: str) -> None:
        self._host = urlsplit(site).netloc
        self._cookies: dict[str, str] = {}

    def ask(self, method: str, path: str, fields: Mapping[str, object] | None = None) -> int:
        """Send a request, read the whole response and return its status."""
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
