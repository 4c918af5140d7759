"""Authentication for tests of APIs: a token is the number of a user, and no table has it."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.models import User
from ninja.security import HttpBearer
from rest_framework import exceptions
from rest_framework.authentication import TokenAuthentication


class Tokens(TokenAuthentication):
    """For REST framework: the token is the number of the user."""

    def authenticate_credentials(self, key: str) -> tuple[User, str]:
        if not key.isdigit():
            raise exceptions.AuthenticationFailed
        return User(pk=int(key)), key


class Bearer(HttpBearer):
    """The same for django-ninja."""

    def authenticate(self, request: Any, token: str) -> Any:
        if not token.isdigit():
            return None
        request.user = User(pk=int(token))
        return token
