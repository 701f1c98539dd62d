// One step of hopper.wgmma.e4m3: 32 products of e4m3fn numbers and an accumulator, float32 bits of which E8M13 are kept.
module step (
    input [255:0] a,
    input [255:0] b,
    input [31:0] c,
    output reg [31:0] d
);
    reg nan;
    reg [7:0] x, y;
    reg [7:0] product;
    reg [23:0] addend;
    reg [19:0] magnitude, significand;
    integer k, top, e, place, last;
    integer exponents [0:31];
    reg signed [20:0] sum; // 32 products below 2^15, and the accumulator

    localparam integer ZERO = -133; // of products that are zero, and of such an accumulator

    function integer exponent(input [7:0] code);
        exponent = code[6:3] == 0 ? -6 : code[6:3] - 7;
    endfunction

    function [3:0] integral(input [7:0] code);
        integral = {code[6:3] != 0, code[2:0]};
    endfunction

    always @* begin
        // alignment exponent
        nan = 0;
        e = c[30:0] == 0 ? ZERO : c[30:23] == 0 ? -126 : c[30:23] - 127;
        top = e;
        for (k = 0; k < 32; k = k + 1) begin
            x = a[8*k +: 8];
            y = b[8*k +: 8];
            if (x[6:0] == 127 || y[6:0] == 127) nan = 1;
            exponents[k] = x[6:0] == 0 || y[6:0] == 0 ? ZERO : exponent(x) + exponent(y);
            if (exponents[k] > top) top = exponents[k];
        end
        // aligned terms, cut off toward zero at 13 bits of fraction
        addend = {c[30:23] != 0, c[22:0]};
        sum = addend >> (10 + top - e);
        if (c[31]) sum = -sum;
        for (k = 0; k < 32; k = k + 1) begin
            x = a[8*k +: 8];
            y = b[8*k +: 8];
            product = integral(x) * integral(y);
            magnitude = ({12'b0, product} << 7) >> (top - exponents[k]);
            if (x[7] ^ y[7]) sum = sum - magnitude;
            else sum = sum + magnitude;
        end
        // normalization, cut off toward zero; an infinite accumulator stays one: its exponent is 128, and products are lost
        magnitude = sum < 0 ? -sum : sum;
        place = 0;
        for (k = 1; k < 20; k = k + 1) if (magnitude[k]) place = k;
        e = place + top - 13;
        last = (e > -126 ? e : -126) - top;
        significand = last < 0 ? magnitude << -last : magnitude >> last;
        if (nan || (c[30:23] == 255 && c[22:0] != 0)) d = 32'h7fffffff;
        else d = {sum < 0, significand[13] ? e[7:0] + 8'd127 : 8'd0, significand[12:0], 10'd0};
    end
endmodule
