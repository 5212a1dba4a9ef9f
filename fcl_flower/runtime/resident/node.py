"""The program of a client: a SuperNode, and the executor that answers its messages.

``python -m fcl_flower.runtime.resident.node HOST:PORT flower-supernode ...`` lasts as
long as the SuperNode, and has its exit code. Where the executor fails the program ends,
and whoever guards it ends the SuperNode: a client without an executor would be deaf.
"""

import os
import secrets
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import closing

from fcl_flower.runtime.resident.executor import Executor


def run_node(address: str, command: Sequence[str]) -> None:
    """Run a SuperNode to its end, which is that of this process.

    Args:
        address: HOST:PORT at which it hands out its messages.
        command: of flower-supernode, in isolation mode ``process``.
    """
    # Nobody else on this machine may take the client's messages up. A pipe, as the
    # secret need not lie in any file.
    secret = secrets.token_bytes(32)
    reader, writer = os.pipe()
    os.write(writer, secret)
    os.close(writer)
    supernode = subprocess.Popen(
        [*command, "--superexec-auth-secret-file", f"/dev/fd/{reader}"],
        pass_fds=[reader],
    )
    os.close(reader)
    threading.Thread(target=_end_with, args=[supernode], daemon=True).start()
    with closing(Executor(address, secret)) as executor:
        executor.run()


def _end_with(supernode: "subprocess.Popen[bytes]") -> None:
    code = supernode.wait()
    os._exit(code if code >= 0 else 128 - code)


if __name__ == "__main__":
    run_node(sys.argv[1], sys.argv[2:])
