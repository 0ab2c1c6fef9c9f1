// Stands for the CUDA backend: compiled by the other machine's own compiler, with something to tidy up when it is unwound.

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
