# For habit's sake: the work is CMake's (CMakePresets.json) and ./run's and ./test's.
.PHONY: all test bench lint install test-peers clean
all: build/build.ninja
	cmake --build build
build/build.ninja:
	cmake --preset release -DCALLA_TESTS=OFF
test:
	./test
test-peers:
	./test --peers
bench: all
	./build/calla bench
lint:
	@for check in tests/lint/*.sh; do sh $$check || [ $$? = 77 ] || exit 1; done
install: all
	cmake --install build $(if $(PREFIX),--prefix $(PREFIX))
clean:
	rm -rf build build-debug build-asan build-tsan build-fuzz
