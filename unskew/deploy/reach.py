"""Addresses: which are free here, and whether this federation's server answers at one."""

import secrets
import socket
import ssl
from pathlib import Path

from unskew.deploy.settings import Address
from unskew.errors import DeployError


# ---------------------------------------------------------------- here
def free_ports(n: int) -> list[int]:
    """Choose different ports on loopback that no program listens on.

    They lie below those that the system gives to outgoing connections, so that none is taken before it is used.
    """
    ports: list[int] = []
    while len(ports) < n:
        port = 20000 + secrets.randbelow(12000)
        if port not in ports and is_free(Address("127.0.0.1", port)):
            ports.append(port)
    return ports


def is_free(listen: Address) -> bool:
    """True if a program could listen at this address now.

    Raises:
        DeployError: If none ever could: the address is not this machine's, or the port is reserved.
    """
    family = socket.AF_INET6 if ":" in listen.host else socket.AF_INET
    with socket.socket(family) as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            s.bind((listen.host, listen.port))
            s.listen()
        except PermissionError:
            raise DeployError(f"port {listen.port} needs rights that this user lacks; choose one above 1023") from None
        except OSError as error:
            if error.errno in (98, 48):  # EADDRINUSE on Linux, macOS
                return False
            raise DeployError(
                f"cannot listen on {listen.host}: {error.strerror or error}; --listen is an address of this machine, "
                "or 0.0.0.0"
            ) from None
    return True


def check_port(listen: Address) -> None:
    """Refuse a port that is in use.

    Raises:
        DeployError: If so.
    """
    if not is_free(listen):
        raise DeployError(
            f"port {listen.port} of {listen.host} is in use by another program; stop that, or make the federation with "
            "another --port"
        )


# ---------------------------------------------------------------- at the server
class Unreachable(DeployError):
    """No server answers at an address; it may do so later."""


def probe(reached: Address, folder: Path, name: str, timeout_s: float = 10.0) -> None:
    """Make a TLS connection to a server as a site would, with NAME.crt and NAME.key of its folder, and end it.

    Raises:
        Unreachable: If nobody answers.
        DeployError: If the answer is not from this federation's server, or its certificate has expired.
    """
    context = ssl.create_default_context(cafile=folder / "ca.crt")
    context.load_cert_chain(folder / f"{name}.crt", folder / f"{name}.key")
    try:
        with (
            socket.create_connection((reached.host, reached.port), timeout_s) as line,
            context.wrap_socket(line, server_hostname=reached.host),
        ):
            return
    except ssl.SSLCertVerificationError as error:
        raise DeployError(_distrust(error, reached)) from None
    except ssl.SSLError as error:
        raise DeployError(f"{reached} does not speak TLS ({error.reason}); is it the right port?") from None
    except (OSError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise Unreachable(f"nobody answers at {reached}: {why}") from None


def _distrust(error: ssl.SSLCertVerificationError, reached: Address) -> str:
    # Numbers are OpenSSL's X509_V_ERR_*.
    if error.verify_code == 10:
        return f"the certificate of {reached} has expired; the coordinator has to start unskew fed serve again"
    if error.verify_code == 9:
        return f"the certificate of {reached} is not valid yet, or the clock here is behind; compare both clocks"
    if error.verify_code in (62, 64):
        return (
            f"the certificate of {reached} is for other names than {reached.host}; use one of its names as host in "
            "site.toml, or make the federation with another --host"
        )
    return (
        f"the certificate of {reached} was not signed by this federation's authority; is the token of this federation, "
        f"and the address right? ({error.verify_message})"
    )
