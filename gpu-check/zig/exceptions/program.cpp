// This file stands for the programs with their shim. The exit code is the number of the first step that failed.

#include <cstring>
#include <exception>
#include <stdexcept>

extern "C" void library_throws();
extern "C" bool library_catches(void (*throws)(), const char * words);
extern "C" int  backend_passes(void (*throws)());
extern "C" int  backend_tidied();

// The type of a failed assertion, as in the shim.
struct own : std::exception {
    const char * what() const noexcept override { return "thrown by the program"; }
};

template <typename F> static bool caught(F && call, const char * words) {
    try {
        call();
    } catch (const std::exception & e) {
        return std::strcmp(e.what(), words) == 0;
    } catch (...) {
    }
    return false;
}

int main() {
    const auto throws_own = [] { throw own(); };
    if (!caught(library_throws, "thrown by the library")) {
        return 1;
    }
    if (!library_catches(throws_own, "thrown by the program")) {
        return 2;
    }
    if (!caught([&] { backend_passes(throws_own); }, "thrown by the program")) {
        return 3;
    }
    if (!caught([] { backend_passes(library_throws); }, "thrown by the library")) {
        return 4;
    }
    return backend_tidied() == 2 ? 0 : 5;
}
