// This file stands for the CUDA backend. The other machine's own compiler compiles it. When an exception passes through
// this code, an object is destroyed.

#include <string>

static int tidied = 0;

struct tidy {
    std::string text = "long enough to be allocated, so that there is something to free";
    ~tidy() { ++tidied; }
};

extern "C" int backend_passes(void (*throws)()) {
    tidy one;
    throws();
    return (int) one.text.size();
}

extern "C" int backend_tidied() {
    return tidied;
}
