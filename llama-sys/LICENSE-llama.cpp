MIT License

Copyright (c) 2023-2026 The ggml authors

Permission is hereby granted, free of charge, to any person obtaining a copy
of this software and associated documentation files (the "Software"), to deal
in the Software without restriction, including without limitation the rights
to use, copy, modify, merge, publish, distribute, sublicense, and/or sell
copies of the Software, and to permit persons to whom the Software is
furnished to do so, subject to the following conditions:

The above copyright notice and this permission notice shall be included in all
copies or substantial portions of the Software.

THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR
IMPLIED, INCLUDING BUT NOT LIMITED TO THE WARRANTIES OF MERCHANTABILITY,
FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE
AUTHORS OR COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER
LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR OTHERWISE, ARISING FROM,
OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE
SOFTWARE.

--------------------------------------------------------------------------------
Parts of llama.cpp are the work of others. These parts are compiled into every
program with llama.cpp, except where a paragraph says otherwise.
--------------------------------------------------------------------------------

Matrix multiplication for processors (ggml/src/ggml-cpu/llamafile):

Copyright 2024 Mozilla Foundation

MIT License: the permission and the disclaimer at the beginning of this file.

--------------------------------------------------------------------------------
YaRN's scaling of positions (ggml/src/ggml-cpu/ops.cpp, and the same function of
other backends), from https://github.com/jquesnelle/yarn:

Copyright (c) 2023 Jeffrey Quesnelle and Bowen Peng

MIT License: the permission and the disclaimer at the beginning of this file.

--------------------------------------------------------------------------------
The exponential function for processors (ggml/src/ggml-cpu/vec.h), adapted from
https://github.com/ARM-software/optimized-routines:

Copyright (c) 1999-2018, Arm Limited.

MIT License: the permission and the disclaimer at the beginning of this file.

--------------------------------------------------------------------------------
Conversion of 16-bit numbers (ggml/src/ggml-impl.h), after
https://github.com/Maratyszcza/FP16:

Copyright (c) 2017 Facebook Inc.
Copyright (c) 2017 Georgia Institute of Technology

MIT License: the permission and the disclaimer at the beginning of this file.

--------------------------------------------------------------------------------
The tokenizer BPE (src/llama-vocab.cpp), adapted from
https://github.com/cmp-nct/ggllm.cpp, a fork of llama.cpp, under the MIT License:
the permission and the disclaimer at the beginning of this file.

--------------------------------------------------------------------------------
The scaling of images (tools/mtmd/mtmd-image.cpp, in builds with the feature
`media`), adapted from https://github.com/python-pillow/Pillow:

The Python Imaging Library (PIL) is

    Copyright © 1997-2011 by Secret Labs AB
    Copyright © 1995-2011 by Fredrik Lundh and contributors

Pillow is the friendly PIL fork. It is

    Copyright © 2010 by Jeffrey A. Clark and contributors

Like PIL, Pillow is licensed under the open source MIT-CMU License:

By obtaining, using, and/or copying this software and/or its associated
documentation, you agree that you have read, understood, and will comply
with the following terms and conditions:

Permission to use, copy, modify and distribute this software and its
documentation for any purpose and without fee is hereby granted,
provided that the above copyright notice appears in all copies, and that
both that copyright notice and this permission notice appear in supporting
documentation, and that the name of Secret Labs AB or the author not be
used in advertising or publicity pertaining to distribution of the software
without specific, written prior permission.

SECRET LABS AB AND THE AUTHOR DISCLAIMS ALL WARRANTIES WITH REGARD TO THIS
SOFTWARE, INCLUDING ALL IMPLIED WARRANTIES OF MERCHANTABILITY AND FITNESS.
IN NO EVENT SHALL SECRET LABS AB OR THE AUTHOR BE LIABLE FOR ANY SPECIAL,
INDIRECT OR CONSEQUENTIAL DAMAGES OR ANY DAMAGES WHATSOEVER RESULTING FROM
LOSS OF USE, DATA OR PROFITS, WHETHER IN AN ACTION OF CONTRACT, NEGLIGENCE
OR OTHER TORTIOUS ACTION, ARISING OUT OF OR IN CONNECTION WITH THE USE OR
PERFORMANCE OF THIS SOFTWARE.

--------------------------------------------------------------------------------
The exponential function for Arm processors with SVE (ggml/src/ggml-cpu/vec.h,
only in builds for such processors), from
https://github.com/openvinotoolkit/openvino:

Copyright (C) 2018-2025 Intel Corporation

Apache License, Version 2.0: the text is in LICENSE-APACHE.

--------------------------------------------------------------------------------
Vulkan's headers, which builds with the feature `vulkan` include:

Copyright 2015-2025 The Khronos Group Inc.

MIT License: the permission and the disclaimer at the beginning of this file.
