import argparse
import os
import sys

from example_project.demo import endings


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m example_project.demo",
        description="A box office on five real nodes, with customers that click twice.",
        epilog="Ctrl-C ends it. Whatever was started is ended, and no file is left.",
    )
    parser.add_argument(
        "--once",
        action="store_true",
        help="five acts that end by themselves; the exit status is 0 if everything held",
    )
    once = parser.parse_args().once
    os.environ["DJANGO_SETTINGS_MODULE"] = "example_project.settings"
    from example_project.demo import forever
    from example_project.demo import once as acts
    from example_project.demo.servers import ServerError

    endings.install()
    try:
        return acts.main() if once else forever.main()
    except endings.Ending as ending:
        print("Stopped. Nothing is left running.")
        return ending.status if once else 0
    except ServerError as error:
        print(f"The demo has failed: {error}")
        return 1


if __name__ == "__main__":
    sys.exit(main())
