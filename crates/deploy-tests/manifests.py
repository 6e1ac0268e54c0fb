"""Checks manifests strictly against the schema of a Kubernetes version and prints them as one JSON array.

Usage: manifests.py VERSION FILE...
"""

import json
import sys

import kubernetes_validate
import yaml


def main(version, paths):
    documents = []
    for path in paths:
        with open(path, encoding="utf-8") as file:
            for document in yaml.safe_load_all(file):
                try:
                    kubernetes_validate.validate(document, version, strict=True)
                except Exception as error:  # each kind of refusal has a class of its own
                    sys.exit(f"{path}: {document.get('kind')}: {error}")
                documents.append(document)
    json.dump(documents, sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
