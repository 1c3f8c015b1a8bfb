"""Packs what python/build-wheel has put beside this file."""
import os

from setuptools import setup
from setuptools.dist import Distribution


class WithModule(Distribution):
    def has_ext_modules(self):
        return True


setup(
    name="railyard",
    version=os.environ["RAILYARD_VERSION"],
    description="Moves data between the processes of a cluster over every path they have",
    packages=["railyard"],
    package_data={"railyard": ["*.so", "*.pyi", "py.typed", "_lib/*", "_bin/*"]},
    python_requires=">=3.9",
    extras_require={"numpy": ["numpy"]},
    entry_points={"console_scripts": ["railyard = railyard.__main__:main"]},
    license_files=["LICENSE"],
    zip_safe=False,
    distclass=WithModule,
)
